"""Newcomers that come together are let in by one regrouping, and nobody waits for others for longer than a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.events import NewcomersHeld, StepsApplied
from shoal.job_config import JobConfig
from shoal.membership.core.core import TICK, MembershipCore
from shoal.membership.core.protocol import Arrived, Closed, Instruction, RecordEvent, Send, Tick
from shoal.membership.generations.wishes import LEAST_HOLD, MOST_HOLD, hold
from shoal.steps import StepRow
from shoal.values import TimeShares
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    Enlist,
    ExchangeBroken,
    Formed,
    Heartbeat,
    Ready,
    RegroupWish,
    Report,
    Watch,
)
from support.membership import join

MEMBERS = 4
LAUNCHER, ELSEWHERE = 1000, 1001  # clients; workers' clients have the workers' numbers
numbers = st.sets(st.integers(0, 50), max_size=12)


class Job:
    """A core in virtual time whose members are always heard, and regroup as soon as they are asked to."""

    def __init__(self) -> None:
        self.core = MembershipCore(JobConfig(workers=MEMBERS), now=0.0)
        self.now = 0.0
        self.members: tuple[int, ...] = ()
        self.generations: list[tuple[float, tuple[int, ...]]] = []
        self.wishes: list[tuple[float, str]] = []
        self.held: list[NewcomersHeld] = []
        self.stall = 0.0  # seconds from a wish to the next generation's first step
        self.say(LAUNCHER, Watch(version=PROTOCOL_VERSION))
        self.say(ELSEWHERE, Watch(version=PROTOCOL_VERSION, is_launcher=False))
        for worker in range(MEMBERS):
            self.say(worker, join(worker))

    def say(self, client: int, message: ClientMessage) -> None:
        self._follow(self.core.handle(Arrived(client, message), self.now))

    def close(self, worker: int) -> None:
        self._follow(self.core.handle(Closed(worker), self.now))

    def until(self, then: float) -> None:
        while self.now + TICK <= then:
            self.now = round(self.now + TICK, 6)
            for worker in self.members:
                self.say(worker, Heartbeat(generation=self.number, step=1, operation="forward"))
            self._follow(self.core.handle(Tick(), self.now))

    @property
    def number(self) -> int:
        return len(self.generations)

    def _follow(self, instructions: tuple[Instruction, ...]) -> None:
        for one in instructions:
            if isinstance(one, RecordEvent) and isinstance(one.event, NewcomersHeld):
                self.held.append(one.event)
            elif isinstance(one, Send) and isinstance(one.message, Formed):
                self.members = tuple(member.worker for member in one.message.generation.members)
                self.generations.append((self.now, self.members))
            elif isinstance(one, Send) and isinstance(one.message, RegroupWish):
                assert one.clients == self.members
                self.wishes.append((self.now, one.message.reason))
                self._regroup(one.message.generation)

    def _regroup(self, generation: int) -> None:
        for worker in self.members:
            report = ExchangeBroken(
                generation=generation,
                step=1,
                operation="step",
                peer=None,
                reason="wish",
                holds=generation,
                is_planned=True,
            )
            self.say(worker, report)
        self.now += self.stall
        row = StepRow(2, 0, 0.1, 1, {}, 1, self.number, self.now)
        applied = StepsApplied(
            worker=0,
            generation=self.number,
            step=2,
            epoch=0,
            samples=1,
            seconds=self.now,
            shares=TimeShares(),
            bytes_sent=0,
            values={},
            rows=(row,),
        )
        self.say(0, Report(events=(applied,)))


@given(ready=numbers.filter(bool), coming=numbers, waited=st.floats(0, 20), limit=st.floats(0.1, 10))
def test_the_reason_says_who_waits_for_whom(ready: set[int], coming: set[int], waited: float, limit: float) -> None:
    found = hold(ready, coming, waited=waited, limit=limit)
    assert found.is_on == (bool(coming) and waited < limit)
    if len(ready) <= 3:
        assert all(str(number) in found.reason for number in ready)
    if len(coming) <= 3:
        assert all(str(number) in found.reason for number in coming)
    assert found == hold(sorted(ready), sorted(coming), waited=waited, limit=limit)


# Of each newcomer: when its number is given, how long it takes to join, and how long then to be ready, in ticks; None:
# it never gets that far.
ORDER = ("enlist", "join", "ready")
newcomers = st.lists(
    st.tuples(st.integers(0, 9), st.none() | st.integers(0, 15), st.none() | st.integers(0, 15)),
    min_size=1,
    max_size=12,
)


@given(newcomers)
def test_whoever_is_ready_is_let_in_within_the_bound_and_together_with_all_that_are_ready(
    coming: list[tuple[int, int | None, int | None]],
) -> None:
    job = Job()
    happens: list[tuple[int, int, str]] = []  # tick, newcomer, what
    for number, (asked, joining, readying) in enumerate(sorted(coming, key=lambda one: one[0])):
        worker = MEMBERS + number
        happens.append((asked, worker, "enlist"))
        if joining is not None:
            happens.append((asked + joining, worker, "join"))
            if readying is not None:
                happens.append((asked + joining + readying, worker, "ready"))
    ready: dict[int, float] = {}
    for tick, worker, what in sorted(happens, key=lambda one: (one[0], ORDER.index(one[2]))):
        job.until(tick * TICK)
        if what == "enlist":
            job.say(ELSEWHERE, Enlist())
        elif what == "join":
            job.say(worker, join(worker))
        else:
            ready[worker] = job.now
            job.say(worker, Ready(generation=job.number))
    job.until(job.now + 2 * LEAST_HOLD)
    entered = {worker: time for time, members in reversed(job.generations) for worker in members if worker >= MEMBERS}
    assert entered.keys() == ready.keys()
    assert all(entered[worker] - time <= LEAST_HOLD + 2 * TICK for worker, time in ready.items())
    for time, members in job.generations:
        assert {worker for worker, when in ready.items() if when < time} <= set(members)
    assert len(job.wishes) == len(job.generations) - 1, "one wish, one regrouping"
    times = ready.values()
    are_together = len(ready) == len(coming) and max(times) - min(times) < LEAST_HOLD
    if are_together and all(asked * TICK <= min(times) for asked, _, _ in coming):
        assert len(job.generations) == 2, "all had a number when the first was ready: they cost one regrouping"


def test_a_newcomer_alone_waits_for_nobody() -> None:
    job = Job()
    job.until(1.0)
    job.say(ELSEWHERE, Enlist())
    job.say(MEMBERS, join(MEMBERS))
    job.say(MEMBERS, Ready(generation=1))
    assert job.wishes == [(1.0, "worker 4 waits to be let in")]
    assert not job.held


def test_one_that_is_gone_is_not_waited_for() -> None:
    job = Job()
    for worker in (4, 5):
        job.say(ELSEWHERE, Enlist())
        job.say(worker, join(worker))
    job.say(4, Ready(generation=1))
    assert [held.workers for held in job.held] == [(4,)]
    job.close(5)
    assert len(job.wishes) == 1


def test_one_for_which_there_is_no_place_is_not_waited_for() -> None:
    job = Job()
    job.say(LAUNCHER, Enlist())  # a replacement, while nobody is missing
    job.say(ELSEWHERE, Enlist())
    job.say(5, join(5))
    job.say(5, Ready(generation=1))
    assert len(job.wishes) == 1


def test_newcomers_wait_for_others_as_long_as_a_regrouping_has_cost() -> None:
    for stall, expected in ((0.2, LEAST_HOLD), (3.0, 3.0), (60.0, MOST_HOLD)):
        job = Job()
        job.stall = stall
        job.say(ELSEWHERE, Enlist())
        job.say(4, join(4))
        job.say(4, Ready(generation=1))
        assert job.number == 2
        for worker in (5, 6):
            job.say(ELSEWHERE, Enlist())
            job.say(worker, join(worker))
        job.say(5, Ready(generation=2))
        started = job.now
        beats = Heartbeat(generation=0, step=0, operation="start-up")
        for _ in range(round((MOST_HOLD + 1) / TICK)):
            if len(job.wishes) < 2:
                job.until(job.now + TICK)
                job.say(6, beats)
        assert abs(job.wishes[1][0] - started - expected) <= 2 * TICK, stall
        assert f"within {expected:.1f} s" in job.wishes[1][1]
