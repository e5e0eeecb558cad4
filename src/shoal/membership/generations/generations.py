"""The job's generations: who is in the current one, how it ends, and how the next one forms. Pure.

Combines which members are alive (`liveness`), what ends a generation (`generation_end`) and who is in the next one
(`forming`). Not here: clients and their messages (`core`), failures of the script and the end of the job (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal import events
from shoal.errors import AddressUnavailable, WorkerLost
from shoal.job_config import JobConfig
from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import GenerationDecided, Remembered
from shoal.membership.core.publishing import MEMBERS_CHANGED, Publishing
from shoal.membership.core.roster import Fate, Worker, forget_ended, remembered
from shoal.membership.generations import forming, liveness
from shoal.membership.generations.cuts import LeftOut
from shoal.membership.generations.forming import EarlierGenerations, NextGeneration, Situation, Wait
from shoal.membership.generations.generation_end import Breakup, Futility, is_clear
from shoal.membership.generations.losses import Losses
from shoal.membership.generations.missing import MissingNotice
from shoal.membership.generations.wishes import Company, RegroupWishes
from shoal.membership.verdicts import deaths
from shoal.values import Generation
from shoal.wire.messages import ExchangeBroken, Expelled, Formed, Ready, Unanswered

RETURN_WAIT = 5.0  # seconds that a restarted coordinator gives members to come back, at least


@dataclass(frozen=True)
class Verdict:
    """What ends the job."""

    error: str  # class name
    text: str


class Generations:
    def __init__(
        self, config: JobConfig, audience: Audience, publishing: Publishing, past: EarlierGenerations, now: float
    ) -> None:
        self.workers: dict[int, Worker] = {}  # all that ever joined, by number
        self.members: dict[int, Worker] = {}  # of the current generation, without those that have left it
        self.current: Generation | None = None
        self.interval = min(1.0, config.heartbeat_limit / 5)  # seconds: five chances for a heartbeat before the limit
        self.last_join = now
        self._config = config
        self._audience = audience
        self._publishing = publishing
        self._earlier = past
        self._breakup = Breakup()
        self._futility = Futility()
        self._despite = 0  # generations in a row that formed although some members may not reach each other
        self.wishes = RegroupWishes(audience, config)
        self._missing = MissingNotice(now=now)
        self._absent: set[int] = set()  # members that are away, done or have failed: no report will come from them
        self._has_news = False  # something happened that the next generation may depend on
        self.has_result = False  # a member has come to its last line
        self.losses = Losses()
        self.loss = ""  # how the last member was lost, for a job that ends because of it
        self._restarted: float | None = None
        self._now = now

    def remember(self, known: Remembered, now: float) -> None:
        """Go on with a generation that an earlier coordinator formed; wait for its members to come back."""
        generation = self.current = known.generation
        assert generation is not None
        self.losses = Losses(generation.lost)
        self.workers = {member.worker: remembered(member, generation.number, now) for member in generation.members}
        self.members = dict(self.workers)
        self._absent = set(self.workers)
        for number in known.guests & set(self.workers):
            self.workers[number].is_guest = True
        self._restarted = now
        for number, is_handover in known.left:
            worker = self.workers[number]
            worker.fate = Fate.HANDED_OVER if is_handover else Fate.FINISHED
            if is_handover:
                self.out(worker, reasons.handed_over(number, "before the coordinator was started again"), now)
            else:
                self.finished(worker)
        self.has_result = known.has_result

    # What happens to workers

    def is_member(self, worker: Worker) -> bool:
        return worker.number in self.members

    @property
    def is_fine(self) -> bool:
        """The members are at work, as far as is known."""
        return self.current is not None and not self._breakup.is_over

    @property
    def has_suspects(self) -> bool:
        return any(worker.is_here and not worker.is_connected for worker in self.members.values())

    def broken(self, worker: Worker, report: ExchangeBroken, now: float) -> None:
        self._has_news = True
        if not self.is_member(worker):
            worker.is_ready = worker.is_here
        elif self.current is not None and report.generation == self.current.number:
            self._breakup.report(worker.number, report, now)

    def unanswered(self, worker: Worker, silence: Unanswered, now: float) -> None:
        if self.is_member(worker) and self.current is not None and silence.generation == self.current.number:
            self._breakup.unanswered(worker.number, silence.peer, now)

    def ready(self, worker: Worker, notice: Ready, now: float) -> None:
        """The worker is in no group. Ignore a notice that a member sent before the current generation."""
        self._has_news = True
        if self.is_member(worker) and self.current is not None:
            if notice.generation < self.current.number:
                return
            self.lose(worker, f"worker {worker.number} is no more in generation {notice.generation}", now)
        worker.is_ready = worker.is_here
        worker.unreachable = notice.unreachable

    def away(self, worker: Worker, cut_off: str, now: float) -> None:
        """The worker's connection closed. That alone is no death: it may come back. `cut_off`: why this side did it."""
        self._has_news = True
        worker.client, worker.cut_off = None, cut_off
        if self.is_member(worker):
            self._absent.add(worker.number)
        if cut_off:
            self.exited(worker, now)

    def back(self, worker: Worker, client: int, now: float) -> None:
        """The worker is connected, for the first time or again."""
        self._has_news = True
        self._absent.discard(worker.number)
        self.wishes.forget(worker.number)
        worker.come_back(client, now)

    def failed(self, worker: Worker) -> None:
        """The worker will say nothing more. `verdicts` decides whether the others go on without it."""
        self._has_news = True
        worker.fate = Fate.FAILED
        if self.is_member(worker):
            self._absent.add(worker.number)

    def exited(self, worker: Worker, now: float) -> None:
        self._has_news = True
        worker.suspect(now)
        if self.is_member(worker):
            self._breakup.sign(worker.number, now, has_witnesses=True)

    def done(self, worker: Worker) -> None:
        """The worker keeps its state and waits for the others to come to the end of their scripts."""
        self._has_news = worker.is_done = True
        self._absent.add(worker.number)

    def lose(self, worker: Worker, why: str, now: float) -> None:
        """A member is out without having announced it: its work may be unfinished."""
        if self.current is not None and self.is_member(worker):
            self.losses.add((worker,), self.current.number)
        self.out(worker, why, now)

    def out(self, worker: Worker, why: str, now: float) -> None:
        """A member is gone or put out: the others go on without it. Nothing happens for other workers."""
        waits = False
        self._has_news = True
        self._absent.discard(worker.number)
        if self.members.pop(worker.number, None) is not None:
            self._breakup.sign(worker.number, now, has_witnesses=False)
            self._breakup.gone.append(why)
            waits = self._breakup.reports.pop(worker.number, None) is not None
            self.loss = why
        worker.put_out()
        worker.is_ready = waits and worker.is_here  # its report said that it is in no group, and is not repeated

    def finished(self, worker: Worker) -> None:
        self._has_news = True
        self._absent.discard(worker.number)
        if self.members.pop(worker.number, None) is not None:
            self.has_result = True
        self._breakup.take_back(worker.number)

    def expel(self, worker: Worker, why: str, hint: str, now: float) -> None:
        """Put a worker out that may be alive, and tell it. It may come back as a newcomer."""
        self._audience.record(events.WorkerExpelled(worker=worker.number, step=worker.step, reason=why + hint))
        if worker.client is not None and self.current is not None:
            self._audience.send((worker.client,), Expelled(generation=self.current.number, reason=why + hint))
        self.lose(worker, why, now)

    # Time

    def tick(self, now: float, *, held_up: bool) -> None:
        """`held_up`: the coordinator itself did not run for a while, so that silence proves nothing."""
        if held_up:
            for worker in self.workers.values():
                worker.heard = now if worker.client is not None or worker.is_awaited else worker.heard
        hearing = self._hearing(now)
        for worker in liveness.heard_again(self.members.values(), hearing):
            worker.suspected = None
            self._breakup.take_back(worker.number)
        for worker in self._missed(hearing, now):
            worker.suspect(now)
            self._breakup.sign(worker.number, now, has_witnesses=False)
        if hearing.has_live and self.is_fine:
            for worker in liveness.hung(self.members.values(), now, self._config.hang_limit):
                text = reasons.hung(worker.number, worker.step, worker.operation, now - worker.moved)
                self.expel(worker, text, reasons.IF_HUNG, now)
        if not hearing.has_live and hearing.silent and self._missing.again(now):
            self._record_waiting(Wait(0, self._config.fewest, reasons.none_heard(now - hearing.last)))

    def _hearing(self, now: float) -> liveness.Hearing:
        limit = self._config.heartbeat_limit
        if self._restarted is not None and now - self._restarted < max(limit, RETURN_WAIT):
            limit = max(limit, RETURN_WAIT)
        ear = liveness.Ear(limit, self.interval, needs_everybody=self._config.manners.progress_proves_life)
        return liveness.listen(self.members.values(), now, ear)

    def _missed(self, hearing: liveness.Hearing, now: float) -> Sequence[Worker]:
        """Silent members that the others should go on without.

        Where no member is heard from there are no others. A job that is suspended as a whole loses nothing by it,
        unless newcomers are there that may go on once the absence limit and the heartbeat limit have passed.
        """
        fresh = [worker for worker in hearing.silent.values() if worker.suspected is None]
        if hearing.has_live or not fresh:
            return fresh
        is_over = now >= hearing.last + self._config.absence_limit + self._config.heartbeat_limit
        return fresh if is_over and forming.waiting(self.workers.values(), now) else ()

    # The next generation

    def settle(self, now: float, *, is_stopping: bool, is_tick: bool) -> Verdict | None:
        """Form the next generation if it is time. Returns why the job ends where another generation is of no use."""
        self._now = now
        if not (is_tick or self._has_news):
            return None
        self._has_news = False
        if self.current is None:
            if is_tick or self._audience.worker_count >= self._config.workers:
                return self._form(is_stopping)
            return None
        if not self._breakup.is_over:
            if not is_stopping and not self.has_result:
                self._wish()
            return None
        if not is_tick and not self._may_be_clear():
            return None
        clear = is_clear(self.members.values(), self._breakup, has_watchers=self._audience.has_watchers)
        hearing = self._hearing(now)
        if not self._breakup.is_due(now, is_clear=clear, is_doubtful=hearing.is_doubtful) or hearing.is_awaiting:
            return None
        if forming.awaits_reports(self.situation(now, is_stopping=is_stopping)):
            return None
        self._bury(hearing)
        return self._disagreement() or self._form(is_stopping)

    def _may_be_clear(self) -> bool:
        """A cheap test first: thousands of reports come at once."""
        return len(self._breakup.reports) + len(self._absent) >= len(self.members)

    def _bury(self, hearing: liveness.Hearing) -> None:
        """Announce who is dead or put out, now that nothing more will be learnt."""
        lost = liveness.lost(self.members.values(), hearing)
        lost.sort(key=lambda worker: (worker.suspected or self._now, worker.number))
        seen = deaths.LastSeen(self.members.values(), self._breakup.reports)
        for worker in lost:
            step, operation = seen.of(worker)
            death = worker.death(step, operation, self._now)
            if worker.client is not None and worker.exit_code is None:
                worker.step = step
                self.expel(worker, death.reason, worker.hint, self._now)
            else:
                self.died(worker, death, self._now)

    def died(self, worker: Worker, death: events.WorkerDied, now: float) -> None:
        worker.fate = Fate.DEAD
        self._audience.record(death)
        hint = worker.hint
        self.lose(worker, death.reason, now)
        self.loss = death.reason + hint
        self._publishing.gone(worker.number, f"worker {worker.number} died before its part was written", now)

    def _disagreement(self) -> Verdict | None:
        """Some members had finished their scripts while others were still in a collective with them."""
        if self.current is None:
            return None
        known = [self.workers[member.worker] for member in self.current.members if member.worker in self.workers]
        error = self._breakup.disagreement(
            [worker for worker in known if worker.is_done or worker.fate is Fate.FINISHED]
        )
        return None if error is None else Verdict(type(error).__name__, str(error))

    def situation(self, now: float, *, is_stopping: bool) -> Situation:
        return Situation(
            config=self._config,
            workers=self.workers.values(),
            generation=self.current,
            breakup=self._breakup,
            is_stopping=is_stopping,
            has_result=self.has_result,
            last_join=self.last_join,
            despite=self._despite,
            now=now,
        )

    def _form(self, is_stopping: bool) -> Verdict | None:
        situation = self.situation(self._now, is_stopping=is_stopping)
        decided = forming.decide(situation)
        is_published = not self._publishing.is_publishing
        if not (isinstance(decided, Wait) or is_published or forming.has_state(decided, situation)):
            decided = Wait(len(decided.workers), self._config.fewest, reasons.STILL_PUBLISHING)
        if isinstance(decided, Wait):
            if self._missing.is_due(decided, at_once=self.current is not None, now=self._now):
                self._record_waiting(decided)
            return None
        self._missing.over(self._now)
        is_futile = self._futility.is_reached(self._breakup, self.workers.values(), has_holders=bool(decided.holders))
        if self.current is not None and is_futile:
            return self._futile(decided)
        self._enter(decided)
        return None

    def _futile(self, planned: NextGeneration) -> Verdict:
        if self._breakup.gone:
            return Verdict(WorkerLost.__name__, reasons.futile_loss(self.loss))
        return Verdict(AddressUnavailable.__name__, reasons.futile(planned.reason))

    def _enter(self, planned: NextGeneration) -> None:
        previous = max(self._earlier.generation, 0 if self.current is None else self.current.number)
        chosen = {worker.number: worker for worker in planned.workers}
        missing = [worker for number, worker in self.members.items() if number not in chosen]
        self.losses.add(missing, previous)  # first: the next generation names the losses for those who go on
        generation = forming.as_generation(previous + 1, planned, self._config, self._earlier, self.losses.open)
        self._audience.write_decision(GenerationDecided(generation))
        for left_out in planned.left_out:
            self._leave_out(left_out)
        for worker in (worker for worker in missing if self.is_member(worker)):
            self.expel(worker, reasons.away(worker.number), "", self._now)
        self._publishing.abandon(MEMBERS_CHANGED)
        self.current = generation
        self.members = chosen
        self._absent = set()
        forget_ended(self.workers, self.members)
        self._despite = self._despite + 1 if planned.is_despite_pairs else 0
        self.wishes.over(generation.number, self._breakup.since)
        self._breakup = Breakup()
        for worker in planned.workers:
            worker.enter(generation.number, self._now)
        self._audience.record(
            events.GenerationFormed(
                generation=generation.number,
                workers=tuple(self.members),
                schedule=generation.schedule,
                codec=generation.codec,
                reason=generation.reason,
            )
        )
        # Workers that were put out and have not asked to be let in again learn from this that it is time to ask.
        outside = [worker for worker in self.workers.values() if worker.must_ask and not worker.is_ready]
        told = tuple(worker.client for worker in outside if worker.is_connected and worker.client is not None)
        self._audience.send(self._clients() + told, Formed(generation=generation))

    def _leave_out(self, left_out: LeftOut) -> None:
        worker, unreached = left_out.worker, left_out.unreached
        if not unreached:
            self.expel(worker, reasons.late(worker.number), reasons.MAY_COME_BACK, self._now)
            return
        hint = reasons.barred(worker.bar(self._now))
        self.expel(worker, reasons.unreachable(worker.number, unreached), hint, self._now)
        worker.is_ready = False  # it must first find out whether it can reach the others

    def _clients(self) -> tuple[int, ...]:
        return tuple(worker.client for worker in self.members.values() if worker.client is not None)

    # Newcomers to a running job

    def _wish(self) -> None:
        if self.current is not None:
            number, clients = self.current.number, self._clients()
            self.wishes.consider(Company(self.workers.values(), self.members.values(), number, clients), self._now)

    def remind(self, worker: Worker) -> None:
        """A member is back and may have missed that newcomers wait."""
        if self.current is not None and self.is_fine and worker.client is not None and self.is_member(worker):
            self.wishes.remind(worker.client, generation=self.current.number)

    # No way to go on

    def hopeless(self, now: float, *, is_stopping: bool) -> Verdict | None:
        """The end of the job where no worker is left, none can be started and none may still come back."""
        situation = self.situation(now, is_stopping=is_stopping)
        if forming.has_hope(situation, has_watchers=self._audience.has_watchers):
            return None
        for worker in tuple(self.members.values()):
            self.died(worker, worker.death(worker.step, worker.operation, now), now)
        return Verdict(WorkerLost.__name__, self.loss or reasons.NOBODY_LEFT)

    def _record_waiting(self, wait: Wait) -> None:
        self._audience.record(events.Waiting(workers=wait.workers, needed=wait.needed, reason=wait.reason))
