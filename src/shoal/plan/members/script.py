"""The script of a simulated worker: what it trains, and what it says and waits for on the way.

Stands for `training`: one loop over data with a checkpoint now and then, a meeting at the loop's end, code behind it
with a meeting in the middle, a last checkpoint and the end. The way into a generation is live code
(`membership.member`), and so are the samples of a step; the order in which things are said and done is that of
`training.loop.loop`, `training.recovery.recovery` and `training.recovery.restart`. Not here: doing it (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shoal.errors import ExchangeFailed, ScriptFailed
from shoal.events import StepsApplied
from shoal.job_config import JobConfig
from shoal.membership.member import member
from shoal.membership.member.alignment import Taking
from shoal.plan.members.invariants import History
from shoal.plan.members.model import ToyState, ToyStore, Trainer
from shoal.plan.members.worker_client import WorkerClient
from shoal.plan.members.worker_group import WorkerGroup
from shoal.plan.world.network import Network
from shoal.plan.world.virtual_time import Process, VirtualTime
from shoal.steps import StepRow
from shoal.values import THROUGH, TimeShares
from shoal.wire.messages import Done, ExchangeBroken, Failed, Leave, PartWritten, Ready, Report

SETTLE_SECONDS = 5.0  # longest wait for the last checkpoint
REPORT_SECONDS = 0.25  # between two reports of applied steps
WELL_BEGUN = 10  # steps
EVALUATION = "evaluation, meeting 2"
LAST_WORD_SECONDS = 30.0  # longest wait of a leaving worker for a coordinator that is away


class ScriptSurroundings(Protocol):
    """What a worker's process finds around it."""

    time: VirtualTime
    network: Network
    history: History
    store: ToyStore
    trainer: Trainer
    config: JobConfig
    pace: Pace

    def process_ended(self, worker: int, code: int) -> None: ...

    def came_behind(self) -> None: ...


@dataclass(frozen=True)
class Pace:
    """How long things take on simulated workers, in seconds, and how often checkpoints are made."""

    step: float = 0.1  # about, of one step's computation
    start: float = 0.3  # about, of a script's imports and building its model
    copying: float = 0.2  # about, of the state from member to member, or from a checkpoint
    writing: float = 0.1  # about, of one part of a checkpoint
    checkpoint_every: int = 10  # steps
    tail: float = 0.4  # about, of each half of the code behind the loop


@dataclass(frozen=True)
class Sleep:
    seconds: float
    operation: str = "forward and backward"  # for heartbeats


@dataclass(frozen=True)
class Exchange:
    label: str
    part: Any
    wanted: tuple[int, ...]  # ranks whose part is needed


@dataclass(frozen=True)
class Until:
    """Wait until the condition holds, for this many seconds at most."""

    condition: Callable[[], bool]
    timeout: float | None = None


Effect = member.Effect | Sleep | Exchange | Until
Effects = Generator[Effect, Any, Any]


class Script:
    def __init__(self, around: ScriptSurroundings, number: int, process: Process, client: WorkerClient) -> None:
        self.number = number
        self.slowness = 1.0  # factor on the time that a step takes
        self.is_leaving = False  # its machine is taken away: it hands its place over at the end of a step
        self.is_raising = False  # its code fails in its next step
        self.hangs_for = 0.0  # seconds for which its code hangs in its next step while heartbeats go on
        self.exit_code = 0  # at the end of the script
        self.state = ToyState()
        self.taken: ToyState | None = None  # copied from others, not in use yet
        self.group: WorkerGroup | None = None
        self._around = around
        self._process = process
        self._client = client
        self._agreed = 0  # generation in which the state was last agreed on; 0: it has none
        self._is_new = True
        self._reported = 0.0  # when it last said how many steps it has applied
        self._ran: set[tuple[int, int]] = set()  # attempts and pieces of the code behind the loop that ran to their end
        self._has_saved = False  # the last checkpoint was made

    def run(self) -> Effects:
        yield Sleep(self._around.pace.start * self._around.time.between(0.0, 2.0), "start-up")
        notice: Ready | ExchangeBroken | Done = Ready(generation=0)
        while True:
            try:
                if not (yield from self._enter(notice)):
                    return  # released
                if self.state.loop == 0:
                    yield from self._restore()
                yield from self._loop()
                yield from self._tail()
                notice = self._done()
            except ExchangeFailed as failure:
                notice = self._broken(failure)
            except _Regroup as planned:
                notice = self._broken(ExchangeFailed(str(planned)), is_planned=True)
            except _HandOver:
                yield from self._leave("it hands its place over", is_handover=True)
                return
            except _Raised:
                self.exit_code = 1
                text = f"Traceback of worker {self.number}"
                self._client.say(Failed(step=self.state.step, error=ScriptFailed.__name__, text=text))
                yield Until(lambda: self._client.heard.is_written_down, LAST_WORD_SECONDS)
                return

    def _enter(self, notice: Ready | ExchangeBroken | Done) -> Effects:
        """Into the next generation, and to where its members are. False: this worker was done, and is released."""
        standing = self.state.standing(self._agreed, is_new=self._is_new)
        self.taken = None
        entered: member.Entered | None = yield from member.regroup(self.number, notice, standing)
        if entered is None:
            return False
        self._is_new = False
        self._agreed = entered.generation.number
        rank = entered.generation.rank_of(self.number)
        assert rank is not None
        if entered.alignment.takings[rank] is Taking.START:
            self.state = ToyState()
        elif self.taken is not None:
            if standing.generation > 0 and self.number in entered.generation.holders:
                self._around.history.took(self.number, self.state, self.taken)
            self.state = self.taken
        if entered.alignment.missed:
            self._reach(0)
            self.state = replace(self.state, points=0, attempt=entered.generation.number)
            self._has_saved = False
        return True

    def _restore(self) -> Effects:
        """All members begin from the newest checkpoint, or from the top."""
        group = self.in_group
        yield Sleep(self._around.pace.copying * self._around.time.between(0.0, 2.0), "restoring")
        newest = self._around.store.newest() if group.rank == 0 else None
        found = ToyState() if newest is None else newest[1]
        answers = yield self.exchange("restoring", found)
        self._reach(0)
        self.state = replace(answers[0], loop=1, points=0, attempt=group.generation.number)
        self._around.history.restored(group.generation.number, self.state)

    def _loop(self) -> Effects:
        around = self._around
        while self.state.points == 0:
            if around.trainer.is_done(self.state):
                yield Until(lambda: self._heard_within(around.config.heartbeat_limit))
                yield self.exchange("end of loop 1", None)
                self.state = replace(self.state, points=1)
                return
            yield Until(lambda: self._heard_within(around.config.absence_limit))
            if self.in_group.broken is None:
                around.history.began(self.number, self.in_group.generation.number)
            hanging, self.hangs_for = self.hangs_for, 0.0
            yield Sleep(around.pace.step * around.time.between(0.5, 1.5) * self.slowness + hanging)
            # Only after some steps: a script that fails at once would fail again, which ends the job.
            if self.is_raising and self.state.step >= WELL_BEGUN and self.in_group.broken is None:
                raise _Raised
            yield from self._step()

    def _tail(self) -> Effects:
        """The code behind the loop: two pieces of the user's own, with a meeting between."""
        around = self._around
        around.came_behind()
        if self.state.points == 1:
            yield from self._own_code(1)
            yield Until(lambda: self._heard_within(around.config.absence_limit))
            self._reach(2)
            yield self.exchange(EVALUATION, None)
            self.state = replace(self.state, points=2)
        yield from self._own_code(2)
        self._reach(THROUGH)
        if not self._has_saved:
            self._has_saved = True
            yield from self._save(wait=True)
        around.history.finished(self.number, self.state)

    def _own_code(self, piece: int) -> Effects:
        """Run a piece once in each attempt: if the meeting behind it breaks, only the meeting is repeated."""
        attempt, rank = self.state.attempt, self.in_group.rank
        if (attempt, piece) in self._ran:
            return
        self._reach(self.state.points)
        seconds = self._around.pace.tail * self._around.time.between(0.0, 2.0)
        yield Sleep(seconds, f"the code behind loop 1, part {piece}")
        self._ran.add((attempt, piece))
        self._around.history.ran_behind(self.number, attempt, piece, is_first=rank == 0)

    def _reach(self, point: int) -> None:
        """Send it at once, as `membership.client` does."""
        self._client.position.point = point
        self._client.beat()

    def _done(self) -> Done:
        self._tell_progress(every=0.0)
        return Done(
            generation=self.in_group.generation.number,
            step=self.state.step,
            reason="its script is done",
            points=self.state.points,
            is_through=True,
        )

    def _step(self) -> Effects:
        around, group = self._around, self.in_group
        samples = around.trainer.part(self.state, group.generation, group.rank)
        wish = self._client.heard.regroup_wish
        answers = yield self.exchange("all-reduce of gradients", (samples, wish, self.is_leaving))
        here = [
            answer for answer in answers if answer is not None
        ]  # every member has answered: the protocol ensures it
        self._apply(tuple(answer[0] for answer in here))
        if self.state.step % around.pace.checkpoint_every == 0:
            yield from self._save(wait=False)
        if self.is_leaving and answers[group.rank][2]:
            raise _HandOver
        if any(answer[2] for answer in here):
            raise _Regroup("a worker hands its place over")
        if any(answer[1] for answer in here):
            raise _Regroup(next(answer[1] for answer in here if answer[1]))

    def _apply(self, parts: tuple[tuple[tuple[int, int], ...], ...]) -> None:
        self.state = self._around.trainer.applied(self.state, self.in_group.generation, parts)
        self._around.history.applied(self.number, self.state)
        self._tell_progress(every=REPORT_SECONDS)

    def _tell_progress(self, *, every: float) -> None:
        """What `training.reporting.reporter` sends a few times a second, and at the end."""
        now = self._around.time.now
        if now - self._reported < every:
            return
        self._reported = now
        step, epoch, generation = self.state.step, self.state.cursor.epoch, self.state.generation
        applied = StepsApplied(
            worker=self.number,
            generation=generation,
            step=step,
            epoch=epoch,
            samples=self.state.step,
            seconds=now,
            shares=TimeShares(),
            bytes_sent=0,
            values={},
            rows=(StepRow(step, epoch, self._around.pace.step, 1, {}, 1, generation, now),),
        )
        self._client.say(Report(events=(applied,)))

    def _save(self, *, wait: bool) -> Effects:
        group, around = self.in_group, self._around
        number, state = group.generation.number, self.state
        part = PartWritten(
            checkpoint=f"step-{state.step:08}-g{number}",
            generation=number,
            step=state.step,
            file=f"part-{group.rank}-of-{group.generation.size}",
            size=1,
            seconds=0.0,
            blocked=0.0,
            reason="it was due",
        )

        def written() -> None:
            around.store.write(part.checkpoint, part.file, state)
            self._client.say(part)

        self._process.after(around.pace.writing * around.time.between(0.1, 2.0), written)
        if wait:
            yield Until(lambda: part.checkpoint in self._client.heard.settled, SETTLE_SECONDS)

    def _leave(self, reason: str, *, is_handover: bool) -> Effects:
        self._tell_progress(every=0.0)
        self._client.say(Leave(step=self.state.step, reason=reason, is_handover=is_handover))
        yield Until(lambda: self._client.heard.is_written_down, LAST_WORD_SECONDS)

    def _broken(self, failure: ExchangeFailed, *, is_planned: bool = False) -> ExchangeBroken:
        generation = self.in_group.generation
        position = self._client.position
        return ExchangeBroken(
            generation=generation.number,
            step=self.state.step,
            operation=position.operation,
            peer=None if failure.peer is None else generation.members[failure.peer].worker,
            reason=str(failure),
            at_end=position.operation == "end of loop 1",
            point=2 if position.operation == EVALUATION else 0,
            holds=self._agreed,
            is_planned=is_planned,
        )

    @property
    def in_group(self) -> WorkerGroup:
        assert self.group is not None
        return self.group

    def exchange(self, label: str, part: Any, wanted: Iterable[int] | None = None) -> Exchange:
        ranks = range(self.in_group.generation.size) if wanted is None else wanted
        return Exchange(label, part, tuple(ranks))

    def _heard_within(self, seconds: float) -> bool:
        return self._around.time.now - self._client.heard_at <= seconds


class _Raised(Exception):
    """The user's code failed."""


class _Regroup(Exception):
    """All members regroup at the end of this step."""


class _HandOver(Exception):
    """This worker leaves, and all others know it."""
