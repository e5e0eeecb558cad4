"""Simulated workers of a job on a `simulated_servers` group: they enrol, lease, read, push, meet, and die.

A worker is a generator that yields while it waits. It keeps to what a client promises: one request at a time, repeated
with the same number when the servers change; gradients staged again when they must be; and it abandons whatever it does
when a new generation is ordered. Each worker keeps what it was told, which the test compares with the ledger.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.parameters.ledger.effects import Reading
from shoal.parameters.ledger.ranges import merged, without
from shoal.values import ServerMap
from shoal.wire.ledger_entries import (
    AnyAnswer,
    AnyEntry,
    Assign,
    Call,
    Committed,
    Done,
    Enrol,
    Granted,
    Lease,
    PlanLoop,
    Push,
    Void,
    Withdraw,
)
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range
from support.simulated_servers import Node, SimulatedServer, WaitingPull

if TYPE_CHECKING:
    from support.simulated_job import SimulatedJob

T = TypeVar("T")
Waiting = Generator[None, None, T]
GROUPS = (({"lr": 0.1},),)


class Ordered(Exception):
    """A new generation was ordered: whatever the worker does is abandoned."""


@dataclasses.dataclass(frozen=True)
class Order:
    generation: int
    workers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Terms:
    """Of the whole job."""

    mode: str
    staleness: int | None
    loop: LoopTerms
    steps: int  # synchronous: how many to do
    calls: float  # how likely a worker calls a meeting in an update
    is_forgetful: bool = False  # a worker forgets its lease when a new generation is ordered


class SimulatedWorker(Node):
    def __init__(self, job: SimulatedJob, number: int) -> None:
        super().__init__(job.network, number)
        self.job = job
        self.map: ServerMap | None = None
        self.order: Order | None = None  # the newest
        self.generation = -1
        self.told: dict[int, AnyAnswer] = {}  # by request: all that it has ever heard
        self.step = 0
        self.has_finished = False
        self.is_new = True  # it has yet to enter a generation since it was started, or put out
        self._taken: Order | None = None  # the order that it acts upon
        self._request = 0
        self._pushes = 0
        self._number = 0  # newest entry that it knows of
        self._known = 0  # meetings that it has heard of
        self._attended = 0
        self._staged: set[tuple[PushId, int]] = set()
        self._holds: list[Range] = []
        self._reading: list[Reading] | None = None  # what the pull that it waits for will bring
        self._open_step: tuple[int, int] | None = None  # (generation, step) of a push whose outcome it does not know
        self._pace = job.network.rng.choice((0.02, 0.05, 0.2))  # seconds of an update
        self._life = self._live()
        next(self._life)

    # What comes from outside

    def hear_map(self, map_: ServerMap) -> None:
        if self.map is None or map_.version > self.map.version:
            self.map = map_
        self.go_on()

    def hear_order(self, order: Order) -> None:
        self.order = order
        self.go_on()

    def hear_answer(self, answer: AnyAnswer) -> None:
        before = self.told.setdefault(answer.request, answer)
        assert before == answer, f"worker {self.number} heard {before}, then {answer}"
        self._number = max(self._number, answer.number)
        self.go_on()

    def go_on(self) -> None:
        if self.has_finished:
            return
        try:
            if self._taken is not None and self.order is not self._taken:
                self._life.throw(Ordered())
            else:
                next(self._life)
        except StopIteration:
            self.has_finished = True

    # What it does

    def _live(self) -> Waiting[None]:
        while True:
            try:
                yield from self._take_order()
                if self.job.terms.mode == "synchronous":
                    yield from self._train_in_steps()
                else:
                    yield from self._train_alone()
                return
            except Ordered:
                self._taken = None

    def _take_order(self) -> Waiting[None]:
        while self.order is None or self.map is None:
            yield
        order = self._taken = self.order
        if self.is_new or self.job.terms.is_forgetful:
            self._holds = []
        if self.is_new:
            self._open_step, self.step = None, 0
        if self._open_step is not None:
            generation, step = self._open_step
            answer = yield from self._ask(lambda: Withdraw(**self._who(), generation=generation, step=step))
            self.step += isinstance(answer, Committed)
            self._open_step = None
        self.step = yield from self._meet(f"enter {order.generation}", self.step)
        self.is_new = False
        self.generation, terms = order.generation, self.job.terms
        rules = {"workers": order.workers, "mode": terms.mode, "staleness": terms.staleness}
        answer = yield from self._must(Done, lambda: Enrol(**self._who(), generation=order.generation, **rules))
        self._attended = self._known = answer.meetings
        if order.generation == 1:  # first values; a loop that is planned before them would be forgotten
            if self.number == order.workers[0]:
                yield from self._push(is_assign=True)
            yield from self._meet(f"assigned {order.generation}", 0)

    def _train_alone(self) -> Waiting[None]:
        loop = self.job.terms.loop
        yield from self._must(Done, lambda: PlanLoop(**self._who(), generation=self.generation, terms=loop))
        while True:
            yield from self._perhaps_call()
            if self._known > self._attended:
                yield from self._attend()
            if not self._holds or self.network.rng.random() < 0.1:
                granted = yield from self._lease()
                if granted.is_over:
                    if (yield from self._attend(is_over=True)):
                        return
                    continue
                if not self._holds:
                    continue
            if not (yield from self._read()):
                continue
            yield from self._sleep(self._pace)
            first = self._holds[0]
            used = Range(first.epoch, first.start, min(first.start + loop.update, first.stop))
            answer = yield from self._push(used=(used,))
            if isinstance(answer, Committed):
                self._holds = without(self._holds, [used])
            else:
                self._holds = []

    def _lease(self) -> Waiting[Granted]:
        holds, wanted = tuple(self._holds), self.network.rng.randint(1, 4)
        more = {"loop": self.job.terms.loop.loop, "meetings": self._attended, "holds": holds}
        answer = yield from self._must(
            Granted, lambda: Lease(**self._who(), generation=self.generation, updates=wanted, **more)
        )
        if answer.lease is not None:
            self._holds = merged([*self._holds, answer.lease])
        return answer

    def _train_in_steps(self) -> Waiting[None]:
        while True:
            if self.step >= self.job.terms.steps:
                if (yield from self._attend(is_over=True)):
                    return
                continue
            yield from self._perhaps_call()
            yield from self._sleep(self._pace)
            self._open_step = (self.generation, self.step)
            answer = yield from self._push()
            if isinstance(answer, Void):
                yield from self._wait(lambda: False)  # the group is broken: a new generation is on its way
            self._open_step = None
            self.step += 1
            yield from self._read()
            if answer.meetings > self._attended:
                self._known = answer.meetings
                yield from self._attend()

    def _perhaps_call(self) -> Waiting[None]:
        if self.network.rng.random() < self.job.terms.calls:
            attended = self._attended
            yield from self._must(
                Done, lambda: Call(**self._who(), generation=self.generation, reason="save", meetings=attended)
            )

    def _attend(self, *, is_over: bool = False) -> Waiting[bool]:
        """True: all are at the end of the loop, and the job is over."""
        self._known = yield from self._meet(f"meet {self.generation}", -1 if is_over else self._known)
        if self._known == -1:
            return True
        self._attended = self._known
        return False

    def _meet(self, where: str, value: int) -> Waiting[int]:
        """Be in one place with all others of the order; the largest value that any of them brought."""
        found: list[int] = []
        here = self._taken
        self.job.meet(self, where, value, lambda largest: found.append(largest) if self._taken is here else None)
        yield from self._wait(lambda: bool(found))
        return found[0]

    def _read(self) -> Waiting[bool]:
        """False: a meeting was called instead."""
        while True:
            view, found = self.map.version, []
            self._reading, taken = found, self._taken
            server = self.job.group.servers[self.network.rng.choice(self.map.servers).number]
            pull = WaitingPull(
                self.number,
                self._number,
                self._attended,
                answer=lambda reading, server=server, found=found: self._reply(server, found, reading),
                is_wanted=lambda found=found, taken=taken: self._reading is found and self.order is taken,
            )
            self.network.send(self, server, lambda server=server, pull=pull: server.pull(pull))
            yield from self._wait(lambda view=view, found=found: bool(found) or self.map.version > view)
            if found and found[0] is Reading.MEET:
                self._known = max(self._known, self._attended + 1)
            if found:
                self._reading = None
                return found[0] is Reading.NOW

    def _reply(self, server: SimulatedServer, found: list[Reading], reading: Reading) -> None:
        def hear() -> None:
            found.append(reading)
            self.go_on()

        self.network.send(server, self, hear)

    def _push(self, *, is_assign: bool = False, used: tuple[Range, ...] = ()) -> Waiting[AnyAnswer]:
        while True:
            push, view = yield from self._stage()
            same = {"generation": self.generation, "view": view, "push": push}
            if is_assign:
                answer = yield from self._ask(lambda same=same: Assign(**self._who(), **same, updates=0))
            else:
                terms = PushTerms(groups=GROUPS)
                more = {"terms": terms, "step": self.step, "used": used}
                answer = yield from self._ask(lambda same=same, more=more: Push(**self._who(), **same, **more))
            if not (isinstance(answer, Void) and answer.restage):
                return answer
            yield from self._sleep(0.01)

    def _stage(self) -> Waiting[tuple[PushId, int]]:
        while True:
            self._pushes += 1
            push, map_ = PushId(self.number, self._pushes), self.map
            for each in map_.servers:
                self._stage_at(self.job.group.servers[each.number], push, map_.version)
            wanted = {(push, each.number) for each in map_.servers}
            yield from self._wait(
                lambda wanted=wanted, map_=map_: wanted <= self._staged or self.map.version > map_.version
            )
            if wanted <= self._staged:
                return push, map_.version

    def _stage_at(self, server: SimulatedServer, push: PushId, view: int) -> None:
        def done() -> None:
            self._staged.add((push, server.number))
            self.go_on()

        self.network.send(self, server, lambda: server.stage(push, view, lambda: self.network.send(server, self, done)))

    def _must(self, kind: type[T], make: Callable[[], AnyEntry]) -> Waiting[T]:
        """An answer of this kind; whoever gets another is no member, and waits for an order."""
        answer = yield from self._ask(make)
        if not isinstance(answer, kind):
            assert isinstance(answer, Void)
            yield from self._wait(lambda: False)
        return answer

    def _ask(self, make: Callable[[], AnyEntry]) -> Waiting[AnyAnswer]:
        """Propose, again whenever the servers change, until there is an answer."""
        self._request += 1
        request, entry = self._request, make()
        while request not in self.told:
            view = self.map.version
            self._propose(entry)
            yield from self._wait(lambda view=view: request in self.told or self.map.version > view)
        answer = self.told[request]
        if self.job.terms.mode != "synchronous" and not isinstance(entry, Enrol):
            self._known = max(self._known, answer.meetings)
        return answer

    def _propose(self, entry: AnyEntry) -> None:
        home, view = self.job.group.servers[self.map.home.number], self.map.version
        self.network.send(self, home, lambda: home.propose(entry, view))

    def _who(self) -> dict[str, Any]:
        return {"worker": self.number, "request": self._request}

    def _sleep(self, seconds: float) -> Waiting[None]:
        due = self.network.now + seconds
        self.network.after(seconds, lambda: self.deliver(self.go_on))
        yield from self._wait(lambda: self.network.now >= due)

    def _wait(self, condition: Callable[[], bool]) -> Waiting[None]:
        while not condition():
            yield
