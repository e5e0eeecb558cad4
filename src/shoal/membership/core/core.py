"""Who is in the job: a pure state machine with messages, closed connections and ticks in, instructions out.

This module handles clients and their messages. `generations` decides who is in which generation, `verdicts` judges
failures and the end of the job, `publishing` follows checkpoints. Every decision carries its reason (`reasons`) and is
written down before anybody hears of it. No clock, socket or thread: the caller passes the time.
"""

from __future__ import annotations

from msgspec.structs import replace

from shoal import events
from shoal.job_config import JobConfig
from shoal.membership.core import admission, reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.briefings import Briefings
from shoal.membership.core.decisions import NumberGiven, Remembered
from shoal.membership.core.job_clock import JobClock
from shoal.membership.core.protocol import (
    Arrived,
    Closed,
    Input,
    Instruction,
    Interrupt,
    JobProgram,
    Noticed,
    Published,
    PublishFailed,
    Tick,
)
from shoal.membership.core.publishing import Publishing
from shoal.membership.core.roster import Fate, Worker
from shoal.membership.core.stopping import Stopping
from shoal.membership.generations.forming import EarlierGenerations
from shoal.membership.generations.generations import Generations
from shoal.membership.verdicts.deaths import Exit
from shoal.membership.verdicts.finishing import Finishing
from shoal.membership.verdicts.job_end import JobEnd
from shoal.membership.verdicts.verdicts import Verdicts
from shoal.wire.messages import (
    Beat,
    Calls,
    ClientMessage,
    Done,
    Enlist,
    Enlisted,
    ExchangeBroken,
    Failed,
    Formed,
    Heartbeat,
    Inject,
    Join,
    Leave,
    PartFailed,
    PartWritten,
    ProcessExited,
    ProcessWorking,
    Ready,
    Report,
    StopNotice,
    StopRequest,
    Turned,
    Unanswered,
    Watch,
    WrittenDown,
)

TICK = 0.1  # seconds between ticks
STALL = 1.0  # seconds; after a longer gap between two ticks the coordinator itself was held up: silence proves nothing


class MembershipCore:
    """Decides. One instance per coordinator's process; `handle` is the only way in."""

    def __init__(
        self,
        config: JobConfig,
        *,
        now: float,
        past: EarlierGenerations | None = None,
        remembered: Remembered | None = None,
        program: JobProgram | None = None,
    ) -> None:
        """`past`: for a job that resumes from a checkpoint. `remembered`: for a coordinator that is started again."""
        self._config = config
        self._clock = JobClock()
        self._now = self._ticked = now  # by the job's clock
        self._beaten = now  # when heartbeats were last sent, by the caller's clock
        self._audience = Audience()
        self._stop = Stopping()
        past = past or EarlierGenerations()
        known = remembered or Remembered()
        after = past.generation if known.generation is None else 0  # checkpoints of this run do not count as past
        self._publishing = Publishing(self._audience, after_generation=after, settled=known.settled)
        self._end_of_job = JobEnd(self._audience, self._publishing, self._clock, now=now)
        self._generations = Generations(config, self._audience, self._publishing, past, now)
        self._greeting = admission.greeting(config, program or JobProgram(), heartbeat=self._generations.interval)
        self._workers = self._generations.workers
        self._briefings = Briefings(self._generations, self._audience)
        self._finishing = Finishing(config, self._audience, self._generations, self._publishing)
        self._verdicts = Verdicts(config, self._audience, self._finishing, self._end_of_job, self._stop)
        self._verdicts.expects_workers = program is not None and program.joins
        self._is_resumed = past.generation > 0
        self._highest = max(config.workers - 1, known.highest_worker)  # highest number given to a worker
        self._guests = set(known.guests)  # numbers that were given to workers beyond those that the launcher starts
        if known.end is not None:
            self._end_of_job.remember(known.end)
        elif known.stop is not None:
            self._stop.remember(known.stop)
        if known.generation is not None:
            self._go_on(known, known.generation.number)

    def _go_on(self, known: Remembered, number: int) -> None:
        self._generations.remember(known, self._now)
        self._workers = self._generations.workers
        self._finishing.remember(known, self._now)
        self._verdicts.remember(known, self._highest)
        if known.end is None:
            workers = tuple(self._generations.members)
            reason = f"the coordinator was started again and goes on with generation {number}"
            self._audience.record(events.CoordinatorReturned(generation=number, reason=reason, workers=workers))

    def handle(self, happened: Input, now: float) -> tuple[Instruction, ...]:
        """Take in what happened at `now` (seconds, any origin, never decreasing) and return what to do about it."""
        self._now = self._clock.at(now)
        if isinstance(happened, Arrived):
            if isinstance(happened.message, Heartbeat) and self._heartbeat(happened.client, happened.message):
                return ()
            self._arrived(happened.client, happened.message)
        elif isinstance(happened, Closed):
            self._closed(happened.client, happened.reason)
        elif isinstance(happened, Interrupt):
            self._interrupt(happened)
        elif isinstance(happened, Published):
            self._publishing.published(happened.checkpoint, happened.outcome, self._now)
        elif isinstance(happened, PublishFailed):
            self._publishing.not_published(happened.checkpoint, happened.reason)
        elif isinstance(happened, Noticed):
            self._audience.record(happened.event)
            self._clock.heed(happened.event, now)
        else:
            self._tick(now)
        if not self._end_of_job.is_over:
            self._settle(is_tick=isinstance(happened, Tick))
            self._briefings.follow()
        if self._end_of_job.ended is not None:
            self._clock.go_on(now)  # the end of a job waits for a full disk for a limited time only
        return self._audience.take()

    # Clients come and go

    def _arrived(self, client: int, message: ClientMessage) -> None:
        if self._audience.has_gone(client):
            return
        if self._audience.is_new(client):
            self._first_message(client, message)
        elif self._end_of_job.is_over:
            return
        elif (number := self._audience.worker_of(client)) is None:
            self._from_watcher(client, message)
        else:
            self._from_worker(client, self._workers[number], message)

    def _first_message(self, client: int, message: ClientMessage) -> None:
        objection = admission.objection(message)
        ended = self._end_of_job.ended
        if not objection and ended is not None and not self._end_of_job.is_telling:
            objection = f"the job has ended: {ended.text}"
        if isinstance(message, Join) and not objection:
            objection = admission.objection_to_worker(message, self._highest, self._workers, self._verdicts.exits)
            is_guest, newest = message.worker in self._guests, self._highest
            objection = objection or self._verdicts.unlike(message, self._now, is_guest=is_guest, newest=newest)
        if objection:
            self._turn_away(client, objection)
        elif isinstance(message, Join):
            self._join(client, message)
        elif isinstance(message, Watch):
            self._audience.add_watcher(client, is_launcher=message.is_launcher)
            self._welcome(client)
            self._audience.catch_up(client)
        if not objection and ended is not None:
            self._audience.send((client,), ended)

    def _join(self, client: int, join: Join) -> None:
        worker = self._workers.get(join.worker)
        if worker is None:
            worker = self._workers[join.worker] = Worker(join=join, client=client, heard=self._now)
            worker.is_guest = join.worker in self._guests
            if self._verdicts.was_known(join.worker) and join.was_member:
                worker.put_out_before()
            self._generations.last_join = self._now
        elif worker.client is not None:  # the worker's old connection is dead, and this side has not noticed yet
            self._audience.remove(worker.client)
            self._audience.close(worker.client)
        is_return = self._generations.is_member(worker)
        is_new = worker.join is join or worker.fate is Fate.DEAD
        worker.join = join  # no decision records the versions that a worker runs
        self._generations.back(worker, client, self._now)
        self._audience.add_worker(client, join.worker)
        current = self._generations.current
        if self._end_of_job.ended is not None:
            pass  # only the end itself is still missing from the record
        elif is_return and current is not None:
            self._audience.record(events.WorkerReturned(worker=join.worker, generation=current.number))
        elif is_new:
            address = str(join.address)
            self._audience.record(
                events.WorkerJoined(worker=join.worker, host=join.host, process=join.process, address=address)
            )
        self._welcome(client, is_member=is_return)
        if is_return and current is not None and join.generation != current.number:
            self._audience.send((client,), Formed(generation=current))
        if self._stop.reason is not None:
            self._audience.send((client,), StopNotice(reason=self._stop.reason))
        self._generations.remind(worker)
        self._finishing.tell_released(worker)

    def _welcome(self, client: int, *, is_member: bool = False) -> None:
        """A watcher gets no generation, and can therefore be welcomed while decisions wait for a disk."""
        current = None if self._audience.worker_of(client) is None else self._generations.current
        self._audience.send((client,), replace(self._greeting, generation=current, is_member=is_member))

    def _turn_away(self, client: int, reason: str) -> None:
        self._audience.send((client,), Turned(reason=reason))
        self._audience.close(client)
        self._closed(client, reason)

    def _closed(self, client: int, reason: str) -> None:
        if self._audience.has_gone(client):
            return
        number = self._audience.worker_of(client)
        self._audience.remove(client)
        if number is not None:
            self._generations.away(self._workers[number], reason, self._now)
        elif client == self._audience.launcher:
            self._verdicts.end_interrupted("the launcher is gone", self._now)

    # What clients say

    def _from_watcher(self, client: int, message: ClientMessage) -> None:
        if isinstance(message, StopRequest):
            self._request_stop(None, message)
        elif isinstance(message, ProcessExited):
            if 0 <= message.worker <= self._highest:
                self._generations.wishes.forget(message.worker)
                exited = Exit(message.worker, message.code, message.loss)
                self._verdicts.exited(exited, self._now, newest=self._highest)
        elif isinstance(message, ProcessWorking):
            if (busy := self._workers.get(message.worker)) is not None:
                busy.heard = self._now
        elif isinstance(message, Enlist):
            if self._end_of_job.ended is None:  # a job that has ended needs no more workers
                self._enlist(client)
        elif isinstance(message, Inject):
            if (victim := self._workers.get(message.worker)) is not None and victim.client is not None:
                self._audience.send((victim.client,), message)
        elif isinstance(message, Report) and all(isinstance(event, admission.REPORTED) for event in message.events):
            for event in message.events:
                self._audience.record(event)
        else:
            self._turn_away(client, f"a watcher may not send {reasons.name_of(message)}")

    def _enlist(self, client: int) -> None:
        self._highest += 1
        is_guest = self._audience.launcher not in (None, client)
        if is_guest:
            self._guests.add(self._highest)
        self._generations.wishes.expect(self._highest, self._now, is_guest=is_guest)
        self._audience.write_decision(NumberGiven(worker=self._highest, is_guest=is_guest))
        self._audience.send((client,), Enlisted(worker=self._highest))

    def _heartbeat(self, client: int, beat: Heartbeat) -> bool:
        """Heartbeats are by far the most frequent message and call for no decision. False: not from a worker."""
        number = self._audience.worker_of(client)
        if number is None:
            return False
        worker = self._workers[number]
        worker.heard = self._now
        worker.take_in(beat, self._now)
        self._progress(beat.step)
        return True

    def _from_worker(self, client: int, worker: Worker, message: ClientMessage) -> None:
        worker.heard = self._now
        if isinstance(message, Report):
            self._report(client, worker, message)
        elif isinstance(message, ExchangeBroken):
            self._progress(message.step)
            self._generations.broken(worker, message, self._now)
        elif isinstance(message, Unanswered):
            self._generations.unanswered(worker, message, self._now)
        elif isinstance(message, Ready):
            if not self._briefings.answer(worker, message):
                self._generations.ready(worker, message, self._now)
        elif isinstance(message, Calls):
            self._briefings.learn(worker, message)
        elif isinstance(message, Done):
            self._finishing.done(worker, message, self._now)
        elif isinstance(message, Failed | Leave):
            self._last_word(client, worker, message)
        elif isinstance(message, PartWritten | PartFailed):
            self._part(client, worker, message)
        elif isinstance(message, StopRequest):
            self._request_stop(worker.number, message)
        else:
            self._turn_away(client, f"worker {worker.number} may not send {reasons.name_of(message)}")

    def _last_word(self, client: int, worker: Worker, message: Failed | Leave) -> None:
        if isinstance(message, Leave):
            self._finishing.leave(worker, message, self._now)
        else:
            self._progress(message.step)
            why = f"worker {worker.number} failed before its part was written"
            if self._verdicts.failed(worker, message, self._now, newest=self._highest):
                self._publishing.gone(worker.number, why, self._now)
        self._audience.send((client,), WrittenDown())

    def _progress(self, step: int, *, is_applied: bool = False) -> None:
        """In a job that resumed from a checkpoint, a step above 0 alone proves no progress."""
        if step > 0 and (is_applied or not self._is_resumed):
            self._verdicts.progressed(step, is_applied=is_applied)

    def _report(self, client: int, worker: Worker, report: Report) -> None:
        for event in report.events:
            if isinstance(event, admission.OWN_EVENTS):
                self._turn_away(client, f"worker {worker.number} may not report {reasons.name_of(event)}")
                return
            if isinstance(event, events.StopAgreed) and self._stop.agreed is None:
                self._stop.agreed = event.reason
            if isinstance(event, events.CheckpointStarted) and self._publishing.is_lost(event.checkpoint):
                continue  # another worker has already reported this checkpoint as lost: that is final
            if isinstance(event, events.StepsApplied):
                if not self._generations.is_member(worker) and not self._config.manners.updates_elsewhere:
                    continue  # the worker was put out: the others may redo the step. What servers applied counts
                # Workers also report when they enter a generation, which alone is no progress.
                self._progress(event.step, is_applied=event.samples > worker.samples)
                worker.samples = event.samples
                newest = max((row.generation for row in event.rows if not row.is_outside), default=0)
                self._generations.losses.stepped(newest)
                self._generations.wishes.stepped(newest, self._now)
            self._audience.record(event)
            if isinstance(event, events.WentBack):
                self._verdicts.went_back(event.step, self._now)

    def _part(self, client: int, worker: Worker, part: PartWritten | PartFailed) -> None:
        generation = self._generations.current
        objection = self._publishing.objection(part, generation, was_member=worker.first_generation > 0)
        if objection or generation is None:
            self._turn_away(client, f"worker {worker.number} may not send {objection}")
        elif self._publishing.answer(part.checkpoint, client):
            return
        elif part.generation < generation.number or worker.generation == generation.number or not worker.is_here:
            self._publishing.part(worker.number, part, generation, self._now)

    def _request_stop(self, worker: int | None, request: StopRequest) -> None:
        if self._stop.reason is None and self._end_of_job.ended is None:
            self._stop.ask(worker, request, self._audience)

    def _interrupt(self, interrupt: Interrupt) -> None:
        """The first signal asks for a stop in good order, a second one ends the job."""
        self._stop.interrupts += 1
        if (
            not interrupt.is_final
            and self._stop.interrupts == 1
            and any(worker.is_connected for worker in self._workers.values())
        ):
            self._request_stop(None, StopRequest(reason=interrupt.reason, exit_code=interrupt.exit_code))
        else:
            self._verdicts.end_interrupted(interrupt.reason, self._now)

    def _tick(self, now: float) -> None:
        held_up = self._now - self._ticked >= STALL
        self._ticked = self._now
        if self._end_of_job.ended is not None:
            return
        if now - self._beaten >= self._generations.interval:
            self._beaten = now
            self._audience.send(self._heard_of(), Beat())
        self._generations.tick(self._now, held_up=held_up)

    def _heard_of(self) -> tuple[int, ...]:
        """Clients of workers that are heard from: a worker whose messages are lost must not think that they arrive."""
        oldest = self._now - self._config.heartbeat_limit
        near = (worker.client for worker in self._workers.values() if worker.heard >= oldest)
        return tuple(client for client in near if client is not None)

    # What follows from all that is known

    def _settle(self, *, is_tick: bool) -> None:
        if self._end_of_job.ended is None:
            self._verdicts.judge(self._now)
            self._finishing.settle(self._now)
        if self._end_of_job.ended is None:
            verdict = self._generations.settle(self._now, is_stopping=self._stop.reason is not None, is_tick=is_tick)
            if verdict is not None:
                self._verdicts.carry_out(verdict, self._now)
        if self._end_of_job.ended is None:
            self._verdicts.finish(self._now, is_tick=is_tick)
        if self._end_of_job.ended is not None:
            self._end_of_job.close(self._workers.values(), self._now)
