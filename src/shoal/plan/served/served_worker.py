"""A simulated worker of a job on parameter servers: it enrols, leases, reads, pushes, meets, and dies.

A worker is a generator that yields while it waits. It keeps a client's promises: it makes one request at a time and
repeats it with the same number when the servers or the connection change; it stages gradients again where needed; it
abandons what it does when a new generation is ordered or the servers' ledger is another one. It keeps all answers,
which are compared with the ledger at the end. Not here: its connections (`server_lines`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from shoal.parameters.ledger.effects import MayRead
from shoal.parameters.ledger.ranges import merged, without
from shoal.plan.members.invariants import Violation
from shoal.plan.served.mail import Mail, SimulatedLine
from shoal.plan.served.served_terms import GenerationOrder, ServedTerms
from shoal.plan.served.server_lines import SimulatedLines
from shoal.plan.served.server_process import Proposed, ServerProcess, WaitingPull
from shoal.plan.world.virtual_time import Process
from shoal.wire.ledger_entries import (
    AnyAnswer,
    AnyEntry,
    Assign,
    Call,
    Committed,
    Enrol,
    Granted,
    Lease,
    OpenLoop,
    ProposalDone,
    Push,
    Void,
    Withdraw,
)
from shoal.wire.tables import Number, PushId, PushTerms, Range

T = TypeVar("T")
Steps = Generator[None, None, T]
GROUPS: tuple[tuple[dict[str, Number], ...], ...] = (({"lr": 0.1},),)
ONE_ANSWER = "a request has one answer"


class NewOrder(Exception):
    """A new generation was ordered: the worker abandons what it does."""


class LedgerLost(Exception):
    """The servers have another ledger than the one that the worker knows."""


class WorkerSurroundings(Protocol):
    """What a worker sees of the simulation."""

    terms: ServedTerms
    mail: Mail
    servers: dict[int, ServerProcess]

    def meet(self, worker: ServedWorker, where: str, value: int, tell: Callable[[int], None]) -> None: ...

    def failed(self, worker: ServedWorker, generation: int, reason: str, *, is_lost: bool) -> None:
        """The worker reports that it cannot go on in this generation; `is_lost`: because the ledger is another one."""


class ServedWorker(Process):
    def __init__(self, around: WorkerSurroundings, number: int) -> None:
        super().__init__(around.mail.time)
        self.number = number
        self.told: dict[int, AnyAnswer] = {}  # all answers so far, by request
        self.step = 0
        self.has_finished = False
        self.is_new = True  # it has entered no generation since it was started or put out
        self._around = around
        self.lines = SimulatedLines(self, self, around.mail, around.servers)
        self.origin: int | None = None  # of the ledger that it enrolled in
        self._is_asking = False  # it waits for servers, which fails when their ledger is lost
        self._failure: LedgerLost | None = None  # to be raised in the generator
        self._order: GenerationOrder | None = None  # the newest
        self._taken: GenerationOrder | None = None  # the order that it acts upon
        self._generation = -1
        self._request = 0
        self._pushes = 0
        self._number = 0  # newest entry that it knows of
        self._known = 0  # meetings that it has heard of
        self._attended = 0
        self._holds: list[Range] = []
        self._reading: list[MayRead] | None = None  # what the awaited pull will bring
        self._open_step: tuple[int, int] | None = None  # (generation, step) of a push whose outcome it does not know
        self._pace = self.time.random.choice((0.02, 0.05, 0.2))  # seconds of an update
        self._life = self._live()
        next(self._life)

    @property
    def knows_ledger(self) -> bool:
        """Whether it has enrolled and would notice another ledger."""
        return self.origin is not None and not self.is_new

    # What comes from outside

    def lose_ledger(self) -> None:
        if self._is_asking:
            self._failure = LedgerLost("all servers that had the ledger are lost")

    def hear_order(self, order: GenerationOrder) -> None:
        self._order = order
        self.go_on()

    def hear_answer(self, answer: AnyAnswer) -> None:
        before = self.told.setdefault(answer.request, answer)
        if before != answer:
            raise Violation(ONE_ANSWER, f"worker {self.number} heard {before}, then {answer}")
        self._number = max(self._number, answer.number)
        self.go_on()

    def go_on(self) -> None:
        if self.has_finished:
            return
        failure, self._failure = self._failure, None
        try:
            if self._taken is not None and self._order is not self._taken:
                self._life.throw(NewOrder())
            elif failure is not None:
                self._life.throw(failure)
            else:
                next(self._life)
        except StopIteration:
            self.has_finished = True

    # What it does

    def _live(self) -> Steps[None]:
        while True:
            try:
                yield from self._take_order()
                if self._around.terms.mode == "synchronous":
                    yield from self._train_in_steps()
                else:
                    yield from self._train_alone()
                return
            except NewOrder:
                self._taken = None
            except LedgerLost as lost:
                assert self._taken is not None, "what fails was ordered"
                self._around.failed(self, self._taken.generation, str(lost), is_lost=True)
                yield from self._wait_for_order()

    def _wait_for_order(self) -> Steps[None]:
        with contextlib.suppress(NewOrder):
            yield from self._wait(lambda: False)
        self._taken = None

    def _take_order(self) -> Steps[None]:
        while self._order is None or self.lines.map is None:
            yield
        order = self._taken = self._order
        if self.is_new or self._around.terms.is_forgetful:
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
        self._generation, terms = order.generation, self._around.terms
        rules: dict[str, Any] = {"workers": order.workers, "mode": terms.mode, "staleness": terms.staleness}
        self.lines.lineage.begin_anew()
        done = yield from self._must(ProposalDone, lambda: Enrol(**self._who(), generation=order.generation, **rules))
        if self.origin not in (None, self.lines.lineage.origin) or done.number < self._number:
            raise LedgerLost("the servers have another ledger than this worker enrolled in before")
        self.origin = self.lines.lineage.origin
        self._attended = self._known = done.meetings
        if order.generation == 1:  # the first values; they would erase a loop planned before them
            if self.number == order.workers[0]:
                yield from self._push(is_assign=True)
            yield from self._meet(f"assigned {order.generation}", 0)

    def _train_alone(self) -> Steps[None]:
        loop = self._around.terms.loop
        yield from self._must(ProposalDone, lambda: OpenLoop(**self._who(), generation=self._generation, terms=loop))
        while True:
            yield from self._perhaps_call()
            if self._known > self._attended:
                yield from self._attend()
            if not self._holds or self.time.chance(0.1):
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
            self._holds = without(self._holds, [used]) if isinstance(answer, Committed) else []

    def _lease(self) -> Steps[Granted]:
        holds, wanted = tuple(self._holds), self.time.random.randint(1, 4)
        more: dict[str, Any] = {"loop": self._around.terms.loop.loop, "meetings": self._attended, "holds": holds}
        answer = yield from self._must(
            Granted, lambda: Lease(**self._who(), generation=self._generation, updates=wanted, **more)
        )
        if answer.lease is not None:
            self._holds = merged([*self._holds, answer.lease])
        return answer

    def _train_in_steps(self) -> Steps[None]:
        while True:
            if self.step >= self._around.terms.steps:
                if (yield from self._attend(is_over=True)):
                    return
                continue
            yield from self._perhaps_call()
            yield from self._sleep(self._pace)
            self._open_step = (self._generation, self.step)
            answer = yield from self._push()
            if isinstance(answer, Void):
                yield from self._give_up(answer)
            self._open_step = None
            self.step += 1
            yield from self._read()
            if answer.meetings > self._attended:
                self._known = answer.meetings
                yield from self._attend()

    def _perhaps_call(self) -> Steps[None]:
        if self.time.chance(self._around.terms.calls):
            attended = self._attended
            yield from self._must(
                ProposalDone, lambda: Call(**self._who(), generation=self._generation, reason="save", meetings=attended)
            )

    def _attend(self, *, is_over: bool = False) -> Steps[bool]:
        """True: all are at the end of the loop, and the job is over."""
        self._known = yield from self._meet(f"meet {self._generation}", -1 if is_over else self._known)
        is_over = self._known == -1
        self._attended = self._attended if is_over else self._known
        if is_over or self.time.chance(0.2):
            yield from self._sleep(
                self.time.between(0.0, 1.5)
            )  # the script evaluates here and asks the servers for nothing
        yield from self._read(is_bounded=False)
        if is_over:
            yield from self._meet(f"end {self._generation}", 0)
        return is_over

    def _meet(self, where: str, value: int) -> Steps[int]:
        """Meet all other workers of the order; returns the largest value that any of them brought."""
        found: list[int] = []
        here = self._taken
        self._around.meet(self, where, value, lambda largest: found.append(largest) if self._taken is here else None)
        yield from self._wait(lambda: bool(found))
        return found[0]

    def _read(self, *, is_bounded: bool = True) -> Steps[bool]:
        """False: a meeting was called instead."""
        found: list[MayRead] = []
        self._reading = found
        with self._asking():
            asked: SimulatedLine | None = None
            while not found:
                ready = self.lines.ready()
                if ready and not self.lines.is_open(asked):
                    number, asked = self.time.random.choice([*ready.items()])
                    self._pull(asked, number, found, is_bounded=is_bounded)
                yield
        self._reading = None
        if found[0] is MayRead.MEET:
            self._known = max(self._known, self._attended + 1)
        return found[0] is MayRead.NOW

    def _pull(self, line: SimulatedLine, number: int, found: list[MayRead], *, is_bounded: bool) -> None:
        def hear(reading: MayRead) -> None:
            found.append(reading)
            self.go_on()

        pull = WaitingPull(
            self.number,
            self._number,
            self._attended,
            is_bounded=is_bounded,
            answer=lambda reading: line.to_worker(partial(hear, reading)),
            is_wanted=partial(self._wants, found, self._taken),
        )
        line.to_server(partial(self._around.servers[number].pull, pull))

    def _wants(self, found: list[MayRead], taken: GenerationOrder | None) -> bool:
        return self._reading is found and self._order is taken

    def _push(self, *, is_assign: bool = False, used: tuple[Range, ...] = ()) -> Steps[AnyAnswer]:
        while True:
            push, view = yield from self._stage()
            same: dict[str, Any] = {"generation": self._generation, "view": view, "push": push}
            if is_assign:
                answer = yield from self._ask(partial(self._assign, same))
            else:
                answer = yield from self._ask(partial(self._use, same, used))
            if not (isinstance(answer, Void) and answer.restage):
                return answer
            yield from self._sleep(0.01)

    def _assign(self, same: dict[str, Any]) -> Assign:
        return Assign(**self._who(), **same, updates=0)

    def _use(self, same: dict[str, Any], used: tuple[Range, ...]) -> Push:
        return Push(**self._who(), **same, terms=PushTerms(groups=GROUPS), step=self.step, used=used)

    def _stage(self) -> Steps[tuple[PushId, int]]:
        """Stage on all servers of the newest map; returns the map's version."""
        with self._asking():
            while True:
                self._pushes += 1
                push, map_ = PushId(self.number, self._pushes), self.lines.newest
                staged: set[int] = set()
                sent: set[SimulatedLine] = set()
                while map_ is self.lines.map and len(staged) < len(map_.servers):
                    for number, line in self.lines.ready().items():
                        if number not in staged and line not in sent:
                            sent.add(line)
                            self._stage_at(number, line, push, staged)
                    yield
                if map_ is self.lines.map:
                    return push, map_.version

    def _stage_at(self, number: int, line: SimulatedLine, push: PushId, staged: set[int]) -> None:
        def done() -> None:
            staged.add(number)
            self.go_on()

        server, view = self._around.servers[number], self.lines.newest.version
        line.to_server(lambda: server.stage(push, view, lambda: line.to_worker(done)))

    def _must(self, kind: type[T], make: Callable[[], AnyEntry]) -> Steps[T]:
        """Ask, and expect this kind of answer. A worker that gets another kind is no member and waits for an order."""
        answer = yield from self._ask(make)
        if not isinstance(answer, kind):
            yield from self._give_up(answer)
        return answer  # type: ignore[return-value]  # giving up never ends

    def _give_up(self, answer: AnyAnswer) -> Steps[None]:
        assert isinstance(answer, Void) and self._taken is not None, answer
        self._around.failed(self, self._taken.generation, answer.reason, is_lost=False)
        yield from self._wait(lambda: False)

    def _ask(self, make: Callable[[], AnyEntry]) -> Steps[AnyAnswer]:
        """Propose until there is an answer, again whenever the servers or the connection change."""
        self._request += 1
        request, entry = self._request, make()
        sent: tuple[SimulatedLine, int] | None = None
        with self._asking():
            while request not in self.told:
                home, view = self.lines.newest.home.number, self.lines.newest.version
                line = self.lines.ready().get(home)
                if line is not None and sent != (line, view):
                    sent = (line, view)
                    proposed = Proposed(self.number, entry, view, self.hear_answer)
                    line.to_server(partial(self._around.servers[home].propose, line, proposed))
                yield
        answer = self.told[request]
        if self._around.terms.mode != "synchronous" and not isinstance(entry, Enrol):
            self._known = max(self._known, answer.meetings)
        return answer

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """While the worker asks servers: the block fails when their ledger is lost, or was lost before."""
        if self.lines.lineage.is_lost:
            raise LedgerLost("all servers that had the ledger were lost meanwhile")
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking, self._failure = False, None

    def _who(self) -> dict[str, Any]:
        return {"worker": self.number, "request": self._request}

    def _sleep(self, seconds: float) -> Steps[None]:
        due = self.time.now + seconds
        self.after(seconds, self.go_on)
        yield from self._wait(lambda: self.time.now >= due)

    def _wait(self, condition: Callable[[], bool]) -> Steps[None]:
        while not condition():
            yield
