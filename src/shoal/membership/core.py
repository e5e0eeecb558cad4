"""Who is in the job: a pure state machine with messages, closed connections and ticks in, instructions out.

Covers joining, the next generation, failures, stops and the end of the job; judges deaths by `deaths` and broken
exchanges by `regrouping`, and leaves checkpoints to `publishing`. Every decision carries its reason (`reasons`). No
clock, socket or thread: the caller says what time it is. Not covered: going on after a death, and newcomers to a
running job.
"""

from __future__ import annotations

from shoal import events
from shoal.errors import AddressUnavailable, Interrupted, ScriptFailed, WorkersDisagree, by_name
from shoal.job_config import JobConfig
from shoal.membership import admission, reasons
from shoal.membership.audience import Audience
from shoal.membership.deaths import Evidence, Verdict, bad_exit, judge
from shoal.membership.missing import MissingNotice
from shoal.membership.protocol import Arrived, Closed, Input, Instruction, Interrupt, Published, PublishFailed
from shoal.membership.publishing import JOB_ENDED, MEMBERS_CHANGED, Publishing
from shoal.membership.regrouping import BrokenExchange, Past, next_generation
from shoal.membership.roster import Worker
from shoal.membership.stopping import Stopping
from shoal.values import Generation
from shoal.wire.messages import (
    ClientMessage,
    Ended,
    ExchangeBroken,
    Failed,
    Formed,
    Heartbeat,
    Join,
    Leave,
    PartFailed,
    PartWritten,
    ProcessExited,
    ProcessWorking,
    Report,
    StopNotice,
    StopRequest,
    Turned,
    Watch,
    Welcome,
)

TICK = 0.1  # seconds between ticks
STALL = 1.0  # seconds between two ticks from which on the coordinator itself was held up, and silence proves nothing
CLOSING_WAIT = 0.3  # seconds that the end of a job waits for what workers still have to say
PUBLISHING_WAIT = 30.0  # seconds that it waits for a checkpoint whose parts are all written

# What only the coordinator may say happened.
OWN_EVENTS = (
    events.JobStarted,
    events.WorkerJoined,
    events.GenerationFormed,
    events.WorkerLeft,
    events.WorkerFailed,
    events.WorkerDied,
    events.CheckpointPublished,
    events.CheckpointLost,
    events.JobEnded,
)


class MembershipCore:
    """Decides. One instance per job; `handle` is the only way in."""

    def __init__(self, config: JobConfig, *, now: float, past: Past | None = None) -> None:
        """`past` is for a job that goes on from a checkpoint."""
        self._config = config
        self._past = past or Past()
        self._started = now
        self._now = now
        self._ticked = now
        self._audience = Audience()
        self._workers: dict[int, Worker] = {}  # all that ever joined, by number
        self._exits: dict[int, int] = {}  # exit codes by worker number, joined or not
        self._generation: Generation | None = None
        self._broken = BrokenExchange()
        self._publishing = Publishing(self._audience, after_generation=self._past.generation)
        self._failure: tuple[int, Failed] | None = None  # the first worker that failed, and what it said
        self._stop = Stopping()
        self._missing = MissingNotice(config.workers, now=now)
        self._ended: Ended | None = None  # decided and told to the workers
        self._outcome = ""
        self._closing_since = now
        self._over = False  # told to everybody; only turning away is left

    def handle(self, happened: Input, now: float) -> tuple[Instruction, ...]:
        """Take in what happened at `now` (seconds, any origin, never going back) and say what to do about it."""
        self._now = now
        if isinstance(happened, Arrived):
            self._arrived(happened.client, happened.message)
        elif isinstance(happened, Closed):
            self._closed(happened.client, happened.reason)
        elif isinstance(happened, Interrupt):
            self._interrupt(happened)
        elif isinstance(happened, Published):
            self._publishing.published(happened.checkpoint, happened.outcome, now)
        elif isinstance(happened, PublishFailed):
            self._publishing.not_published(happened.checkpoint, happened.reason)
        else:
            self._tick()
        if not self._over:
            self._settle()
        return self._audience.take()

    # Clients come and go

    def _arrived(self, client: int, message: ClientMessage) -> None:
        if self._audience.has_gone(client):
            return
        if self._audience.is_new(client):
            self._first_message(client, message)
        elif self._over:
            return
        elif (number := self._audience.worker_of(client)) is None:
            self._from_watcher(client, message)
        else:
            self._from_worker(client, self._workers[number], message)

    def _first_message(self, client: int, message: ClientMessage) -> None:
        objection = admission.objection(message, self._ended)
        if isinstance(message, Join) and not objection:
            objection = admission.objection_to_worker(message, self._config.workers, self._workers, self._exits)
        if objection:
            self._turn_away(client, objection)
            return
        if isinstance(message, Join):
            self._audience.add_worker(client, message.worker)
            self._workers[message.worker] = Worker(join=message, client=client, heard=self._now)
            where = str(message.address)
            self._audience.note(
                events.WorkerJoined(worker=message.worker, host=message.host, process=message.process, address=where)
            )
        else:
            self._audience.add_watcher(client)
        # Five chances for a heartbeat before the limit.
        heartbeat = min(1.0, self._config.heartbeat_limit / 5)
        self._audience.send((client,), Welcome(config=self._config.to_toml(), heartbeat=heartbeat))
        if isinstance(message, Watch):
            self._audience.catch_up(client)
        elif self._stop.reason is not None:
            self._audience.send((client,), StopNotice(reason=self._stop.reason))

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
            worker = self._workers[number]
            worker.client = None
            worker.cut_off = reason
            worker.suspect(self._now)
        elif client == self._audience.launcher:
            self._end_interrupted("the launcher is gone")

    # What clients say

    def _from_watcher(self, client: int, message: ClientMessage) -> None:
        if isinstance(message, StopRequest):
            self._request_stop(None, message)
        elif isinstance(message, ProcessExited):
            self._process_exited(message.worker, message.code)
        elif isinstance(message, ProcessWorking):
            if (busy := self._workers.get(message.worker)) is not None:
                busy.heard = self._now
        else:
            self._turn_away(client, f"a watcher may not send {reasons.name_of(message)}")

    def _from_worker(self, client: int, worker: Worker, message: ClientMessage) -> None:
        worker.heard = self._now
        if isinstance(message, Heartbeat):
            worker.step, worker.operation = message.step, message.operation
        elif isinstance(message, Report):
            self._report(client, worker, message)
        elif isinstance(message, ExchangeBroken):
            self._exchange_broken(worker, message)
        elif isinstance(message, Failed):
            self._failed(worker, message)
        elif isinstance(message, Leave):
            self._leave(worker, message)
        elif isinstance(message, PartWritten | PartFailed):
            self._part(client, worker, message)
        elif isinstance(message, StopRequest):
            self._request_stop(worker.number, message)
        else:
            self._turn_away(client, f"worker {worker.number} may not send {reasons.name_of(message)}")

    def _report(self, client: int, worker: Worker, report: Report) -> None:
        for event in report.events:
            if isinstance(event, OWN_EVENTS):
                self._turn_away(client, f"worker {worker.number} may not report {reasons.name_of(event)}")
                return
            if isinstance(event, events.StopAgreed) and self._stop.agreed is None:
                self._stop.agreed = event.reason
            if isinstance(event, events.CheckpointStarted) and self._publishing.is_lost(event.checkpoint):
                continue  # another worker was faster to say that it is lost: that is the last word on it
            self._audience.note(event)

    def _exchange_broken(self, worker: Worker, report: ExchangeBroken) -> None:
        generation = self._generation
        if generation is None or report.generation != generation.number:
            return  # late news: that generation has already been replaced
        if not worker.done and generation.rank_of(worker.number) is not None:
            self._broken.add(worker.number, report, self._now)

    def _failed(self, worker: Worker, failed: Failed) -> None:
        worker.done = True
        text = reasons.shortened(failed.text)
        if self._ended is not None and text in self._ended.text:
            return  # it repeats why the job ended
        name = type(by_name(failed.error, text)).__name__
        self._audience.note(events.WorkerFailed(worker=worker.number, step=failed.step, error=name, text=text))
        if self._failure is None:
            self._failure = (worker.number, failed)

    def _leave(self, worker: Worker, leave: Leave) -> None:
        if not worker.done:
            worker.done = True
            worker.step = leave.step
            self._audience.note(events.WorkerLeft(worker=worker.number, step=leave.step, reason=leave.reason))

    def _part(self, client: int, worker: Worker, part: PartWritten | PartFailed) -> None:
        objection = self._publishing.objection(worker.number, part, self._generation)
        if objection or self._generation is None:
            self._turn_away(client, f"worker {worker.number} may not send {objection}")
        else:
            self._publishing.part(worker.number, part, self._generation, self._now)

    def _request_stop(self, worker: int | None, request: StopRequest) -> None:
        if self._stop.reason is None and self._ended is None:
            self._stop.reason = reasons.shortened(request.reason)
            self._stop.exit_code = request.exit_code if worker is None else 0
            self._audience.note(events.StopRequested(worker=worker, reason=self._stop.reason))
            self._audience.send(self._audience.workers(), StopNotice(reason=self._stop.reason))

    def _interrupt(self, interrupt: Interrupt) -> None:
        """Whoever signals all processes of a job wants it to stop in good order; whoever insists wants the end."""
        self._stop.interrupts += 1
        if self._stop.interrupts == 1 and any(worker.is_active for worker in self._workers.values()):
            self._request_stop(None, StopRequest(reason=interrupt.reason, exit_code=interrupt.exit_code))
        else:
            self._end_interrupted(interrupt.reason)

    def _end_interrupted(self, reason: str) -> None:
        if self._stop.is_by_signal and self._stop.reason is not None:  # somebody has said why before
            self._end("interrupted", "", self._stop.reason, exit_code=self._stop.exit_code)
        else:
            self._end("interrupted", Interrupted.__name__, reason)

    def _process_exited(self, number: int, code: int) -> None:
        if number in self._exits or not 0 <= number < self._config.workers or self._ended is not None:
            return
        self._exits[number] = code
        worker = self._workers.get(number)
        if worker is not None and not worker.done:
            worker.exit_code = code
            worker.suspect(self._now)
        elif code != 0:
            self._pronounce(bad_exit(number, worker, code))

    def _tick(self) -> None:
        held_up = self._now - self._ticked >= STALL
        self._ticked = self._now
        for worker in self._workers.values():
            if held_up:
                worker.heard = self._now
            worker.check_heartbeat(self._now, self._config.heartbeat_limit)
        if self._ended is None and (text := self._missing.due(self._workers, self._now)) is not None:
            self._audience.note(events.Advised(worker=None, text=text))

    # What follows from all that is known

    def _settle(self) -> None:
        if self._ended is None:
            evidence = Evidence(
                workers=self._workers,
                generation=self._generation,
                reports=self._broken.reports,
                has_launcher=self._audience.launcher is not None,
                now=self._now,
            )
            if (verdict := judge(evidence)) is not None:
                self._pronounce(verdict)
        if self._ended is None and self._failure is not None:
            self._end_by_failure(*self._failure)
        self._publishing.gone([worker.number for worker in self._workers.values() if worker.done], self._now)
        if self._ended is None:
            self._form_generation()
        if self._ended is None:
            self._finish()
        if self._ended is not None:
            self._close_job(self._ended)

    def _pronounce(self, verdict: Verdict) -> None:
        for event in verdict.events:
            self._audience.note(event)
        self._end("failed", verdict.error, verdict.text)

    def _end_by_failure(self, worker: int, failed: Failed) -> None:
        """Unless somebody may have died before it: then the failure is likely to be a consequence, and waits."""
        if any(other.is_suspect for other in self._workers.values()):
            return
        error = by_name(failed.error, failed.text)
        outcome = "interrupted" if isinstance(error, Interrupted) else "failed"
        text = reasons.failure(worker, failed, of_script=isinstance(error, ScriptFailed))
        self._end(outcome, type(error).__name__, text)

    def _form_generation(self) -> None:
        workers = self._config.workers
        if self._generation is None:
            if len(self._workers) == workers:
                self._next_generation(f"{reasons.all_of(workers, 'worker', 'workers')} joined")
            return
        members = [member.worker for member in self._generation.members if not self._workers[member.worker].done]
        if any(self._workers[number].is_suspect for number in members) or not self._broken.is_due(members, self._now):
            return
        gone = [member.worker for member in self._generation.members if member.worker not in members]
        # Whoever passes the meeting at the end of a loop has everybody's part in it, and may finish before another, for
        # whom it broke, has met the rest again.
        reports = self._broken.reports
        is_ending = all(report.at_end for report in reports.values())
        left_there = {report.step for report in reports.values()} == {self._workers[number].step for number in gone}
        if gone and not (is_ending and left_there):
            reporter, report = next(iter(reports.items()))
            self._end("failed", WorkersDisagree.__name__, reasons.finished_before(gone[0], reporter, report))
            return
        reason = self._broken.conclude(members)
        if self._broken.is_futile:
            text = f"{reason}, but no generation gets beyond that step; check the network between the workers"
            self._end("failed", AddressUnavailable.__name__, text)
        else:
            self._next_generation(reason)

    def _next_generation(self, reason: str) -> None:
        workers = [worker for worker in self._workers.values() if not worker.done]
        if not workers:
            return
        self._publishing.abandon(MEMBERS_CHANGED)
        previous = self._past.generation if self._generation is None else self._generation.number
        generation = self._generation = next_generation(previous, workers, self._config, self._past, reason)
        self._audience.note(
            events.GenerationFormed(
                generation=generation.number,
                workers=tuple(member.worker for member in generation.members),
                schedule=generation.schedule,
                codec=generation.codec,
                reason=reason,
            )
        )
        clients = tuple(worker.client for worker in workers if worker.client is not None)
        self._audience.send(clients, Formed(generation=generation))

    def _finish(self) -> None:
        """End the job when everybody is done, or when some will never come to what the others wait for."""
        workers = self._config.workers
        outside = sorted(number for number in self._exits if number not in self._workers)
        if self._workers and outside:
            self._end("failed", WorkersDisagree.__name__, reasons.left_out(outside[0], min(self._workers)))
        elif len(outside) == workers:
            self._end("finished", "", f"{reasons.all_of(workers, 'process', 'processes')} ended with exit code 0")
        elif len(self._workers) == workers and all(worker.done for worker in self._workers.values()):
            if self._stop.agreed is not None:
                self._end(self._stop.outcome, "", self._stop.agreed, exit_code=self._stop.exit_code)
            else:
                self._end("finished", "", f"{reasons.all_of(workers, 'worker', 'workers')} finished")

    # The end

    def _end(self, outcome: str, error: str, text: str, *, exit_code: int = 0) -> None:
        """The first reason to end the job wins. Workers are told now, watchers when the record is complete."""
        if self._ended is not None:
            return
        exit_code = by_name(error, text).exit_code if error else exit_code
        self._ended = Ended(exit_code=exit_code, error=error, text=text)
        self._outcome = outcome
        self._closing_since = self._now
        self._audience.send(self._audience.workers(), self._ended)

    def _close_job(self, ended: Ended) -> None:
        waiting = self._now - self._closing_since < CLOSING_WAIT
        if waiting and any(worker.may_speak for worker in self._workers.values()):
            return
        self._publishing.abandon(JOB_ENDED)
        if self._publishing.is_publishing and self._now - self._closing_since < PUBLISHING_WAIT:
            return
        self._publishing.give_up(f"it was not published within {PUBLISHING_WAIT:.0f} s of the job's end")
        self._over = True
        seconds = self._now - self._started
        self._audience.note(
            events.JobEnded(outcome=self._outcome, exit_code=ended.exit_code, reason=ended.text, seconds=seconds)
        )
        self._audience.send(self._audience.watchers(), ended)
        self._audience.end(ended.exit_code)
