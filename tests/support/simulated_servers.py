"""A simulated server group in virtual time: servers around the live `Sequencer` and `Ledger`, a keeper, the network.

Messages take random times and keep their order per connection. Servers are killed, or stopped and wake up later;
connections between them break. What the network or a server does is here; workers are in `simulated_workers`.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable

from shoal.parameters.ledger.effects import Begun, Drop, Effect, Reading, Replace, Update
from shoal.parameters.ledger.sequencer import Answer, Installed, Instruction, Redirect, Send, Sequencer
from shoal.values import Address, Server, ServerMap
from shoal.wire.ledger_entries import AnyEntry
from shoal.wire.parameter_messages import LedgerCopy
from shoal.wire.tables import PushId

Call = Callable[[], None]
MOST_EVENTS = 300_000  # of one run; more means that it goes round in circles


class Network:
    """Virtual time and messages."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self._queue: list[tuple[float, int, Call]] = []
        self._count = itertools.count()
        self._last: dict[tuple[Node, Node], float] = {}  # when the newest message of a connection arrives
        self._links: dict[frozenset[Node], int] = {}  # connections between servers: how often each was made
        self._down: set[frozenset[Node]] = set()

    def after(self, delay: float, call: Call) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._count), call))

    def delay(self) -> float:
        return self.rng.uniform(0.001, 0.02) if self.rng.random() < 0.95 else self.rng.uniform(0.02, 1.0)

    def send(self, source: Node, target: Node, call: Call) -> None:
        """Messages of one connection arrive in order."""
        due = max(self._last.get((source, target), 0.0), self.now + self.delay())
        self._last[source, target] = due
        heapq.heappush(self._queue, (due, next(self._count), lambda: target.deliver(call)))

    def send_by_link(self, source: Node, target: Node, call: Call) -> None:
        """Between servers: lost where there is no connection, or it breaks meanwhile."""
        link = frozenset((source, target))
        made = self._links.get(link, 0)
        if made and link not in self._down:
            self.send(source, target, lambda: call() if self._links[link] == made else None)

    def connect(self, first: SimulatedServer, second: SimulatedServer) -> None:
        link = frozenset((first, second))
        self._links[link] = self._links.get(link, 0) + 1
        self._down.discard(link)
        for one, other in ((first, second), (second, first)):
            self.send_by_link(other, one, lambda one=one, other=other: one.connected(other))

    def is_linked(self, first: Node, second: Node) -> bool:
        return frozenset((first, second)) in self._links

    def cut(self, first: SimulatedServer, second: SimulatedServer) -> None:
        """The connection breaks; it is made again a moment later."""
        link = frozenset((first, second))
        if link in self._links and link not in self._down:
            self._links[link] += 1
            self._down.add(link)
            self.after(self.rng.uniform(0.01, 0.3), lambda: self.connect(first, second))

    def run(self) -> None:
        for _ in range(MOST_EVENTS):
            if not self._queue:
                return
            self.now, _, call = heapq.heappop(self._queue)
            call()
        raise AssertionError(f"no end after {MOST_EVENTS} events, {self.now:.1f} seconds")


class Node:
    """A process: it runs, is stopped (and gets its messages when it wakes up), or is dead."""

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.is_dead = False
        self.is_stopped = False
        self._inbox: list[Call] = []

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.is_stopped

    def deliver(self, call: Call) -> None:
        if self.is_stopped:
            self._inbox.append(call)
        elif not self.is_dead:
            call()

    def wake(self) -> None:
        self.is_stopped = False
        inbox, self._inbox = self._inbox, []
        for call in inbox:
            self.deliver(call)


class LoggedSequencer(Sequencer):
    """Keeps every entry that it has applied."""

    def __init__(self, job: str, server: int, histories: dict[bytes, dict[int, AnyEntry]]) -> None:
        super().__init__(job, server)
        self.log: dict[int, AnyEntry] = {}
        self._histories = histories  # by copy of a ledger: what led to it

    def _install(self, payload: bytes, out: list[Instruction]) -> None:
        before = self.number
        super()._install(payload, out)
        if before < self.number and self.number in self._histories[payload]:
            self.log = {**self._histories[payload], **self.log}

    def _apply(self, number: int, entry: AnyEntry, out: list[Instruction]) -> None:
        self.log[number] = entry
        super()._apply(number, entry, out)


@dataclasses.dataclass
class WaitingPull:
    worker: int
    at_least: int
    meetings: int
    answer: Callable[[Reading], None]
    is_wanted: Callable[[], bool]  # its worker still waits for this one


class SimulatedServer(Node):
    """Carries the sequencer's instructions out on staged pushes that have no bytes."""

    def __init__(self, group: SimulatedGroup, number: int) -> None:
        super().__init__(group.network, number)
        self.group = group
        self.sequencer = LoggedSequencer("job", number, group.histories)
        self.map: ServerMap | None = None
        self.is_doomed = False  # the keeper is about to find it missing
        self.staged: dict[PushId, int] = {}  # with the view of each
        self.applied: list[tuple[int, tuple[PushId, ...]]] = []  # updates since this server has been there
        self._early: list[tuple[PushId, int, Call]] = []  # staged under a map that is not known here yet
        self._pulls: list[WaitingPull] = []

    @property
    def view(self) -> int:
        return 0 if self.map is None else self.map.version

    def hear_map(self, map_: ServerMap) -> None:
        self.map = map_
        self._do(self.sequencer.new_map(map_))
        early, self._early = self._early, []
        for push, view, done in early:
            self.stage(push, view, done)

    def connected(self, other: SimulatedServer) -> None:
        self._do(self.sequencer.connected(other.number))

    def propose(self, entry: AnyEntry, view: int) -> None:
        self._do(self.sequencer.proposed(entry, view))

    def stage(self, push: PushId, view: int, done: Call) -> None:
        if view > self.view:
            self._early.append((push, view, done))
        elif view == self.view:
            self.staged[push] = view
            done()

    def pull(self, pull: WaitingPull) -> None:
        self._pulls.append(pull)
        self._look_at_pulls()

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self._send(instruction)
            elif isinstance(instruction, Answer):
                self.group.answer(self, instruction)
            elif isinstance(instruction, Redirect):
                pass  # its worker hears of the map from the keeper
            elif isinstance(instruction, Installed):
                assert not instruction.had_one, "a server with a ledger never misses entries"
            else:
                self._take(instruction)
        self._look_at_pulls()

    def _send(self, send: Send) -> None:
        target = self.group.servers[send.server]
        if isinstance(send.note, LedgerCopy):
            self.group.histories[send.payload] = dict(self.sequencer.log)
        self.network.send_by_link(self, target, lambda: target.hear(self, send))

    def hear(self, sender: SimulatedServer, send: Send) -> None:
        self._do(self.sequencer.heard(sender.number, send.note, send.payload))

    def _take(self, effect: Effect) -> None:
        if isinstance(effect, Update | Replace):
            pushes = effect.pushes if isinstance(effect, Update) else (effect.push,)
            for push in pushes:
                assert self.staged.pop(push, None) is not None, f"server {self.number} has not got {push} staged"
            self.applied.append((effect.number, pushes))
        elif isinstance(effect, Drop):
            for push in effect.pushes:
                self.staged.pop(push, None)
        elif isinstance(effect, Begun):
            self.staged = {push: view for push, view in self.staged.items() if view >= effect.view}

    def _look_at_pulls(self) -> None:
        ledger, waiting, self._pulls = self.sequencer.ledger, self._pulls, []
        for pull in waiting:
            reading = Reading.WAIT
            if ledger is not None and ledger.number >= pull.at_least:
                reading = ledger.may_read(pull.worker, pull.meetings)
            if reading is Reading.WAIT:
                self._pulls.append(pull)
                continue
            if reading is Reading.NOW and pull.is_wanted():
                self.group.check_read(pull.worker)
            pull.answer(reading)


class SimulatedGroup:
    """The keeper: it makes maps, and allows no more deaths than replicas can bear."""

    def __init__(self, network: Network, servers: int, replicas: int) -> None:
        self.network = network
        self.replicas = replicas
        self.histories: dict[bytes, dict[int, AnyEntry]] = {}
        self.servers: dict[int, SimulatedServer] = {}
        self.map: ServerMap | None = None
        self.listeners: list[Callable[[ServerMap], None]] = []  # for every new map
        self.on_answer: list[Callable[[SimulatedServer, Answer], None]] = []
        self._allowance = 0  # deaths that are allowed before the next settled state
        self._keeper = Node(network, -1)
        for _ in range(servers):
            self._start()
        self._publish([*self.servers])

    def answer(self, server: SimulatedServer, answer: Answer) -> None:
        for hear in self.on_answer:
            hear(server, answer)

    @property
    def members(self) -> list[SimulatedServer]:
        return [self.servers[each.number] for each in self.map.servers] if self.map is not None else []

    @property
    def is_settled(self) -> bool:
        """All servers of the map have its beginning, and so all that came before it."""
        return all(
            server.is_running
            and not server.is_doomed
            and server.view == self.map.version
            and server.sequencer.ledger is not None
            and server.sequencer.ledger.view == self.map.version
            for server in self.members
        )

    def add(self) -> None:
        number = self._start()
        self._publish([*(server.number for server in self.members), number])

    def strike(self, *, kill: bool, replace: bool, tries: int = 20) -> None:
        """One server is killed, or stopped for a while; later if that would lose what a worker was told."""
        if self.is_settled:
            self._allowance = min(max(self.replicas - 1, 1), len(self.members) - 1)
        running = [server for server in self.members if server.is_running and not server.is_doomed]
        if self._allowance == 0 or len(running) < 2:
            if tries:
                self.network.after(0.2, lambda: self.strike(kill=kill, replace=replace, tries=tries - 1))
            return
        self._allowance -= 1
        # Home is the one that matters most.
        victim = running[0] if self.network.rng.random() < 0.5 else self.network.rng.choice(running)
        victim.is_dead, victim.is_stopped, victim.is_doomed = kill, not kill, True
        if not kill:
            self.network.after(self.network.rng.uniform(0.5, 5.0), victim.wake)
        wait = self.network.rng.uniform(0.001, 0.1) if kill else 1.5
        self.network.after(wait, lambda: self._lose(victim, replace=replace))

    def cut(self) -> None:
        running = [server for server in self.members if server.is_running]
        if len(running) > 1:
            self.network.cut(*self.network.rng.sample(running, 2))

    def check_read(self, worker: int) -> None:
        """Home knows best how far everybody is."""
        home = self.members[0]
        ledger = home.sequencer.ledger
        if not home.is_running or not home.sequencer.is_begun or ledger is None or ledger.staleness is None:
            return
        own = ledger.clocks.by_worker.get(worker)
        if own is not None:
            behind = [own.count - each.count for each in ledger.clocks.by_worker.values() if each.is_at_work]
            assert max(behind, default=0) <= ledger.staleness, f"worker {worker} read {max(behind)} clocks ahead"

    def _lose(self, victim: SimulatedServer, *, replace: bool) -> None:
        numbers = [server.number for server in self.members if server is not victim]
        self._publish(numbers)
        if replace or len(numbers) < 2:
            self.network.after(self.network.rng.uniform(0.0, 1.0), self.add)

    def _start(self) -> int:
        number = len(self.servers)
        self.servers[number] = SimulatedServer(self, number)
        return number

    def _publish(self, numbers: list[int]) -> None:
        version = 1 if self.map is None else self.map.version + 1
        named = tuple(Server(number, Address("host", 1), "host", number) for number in sorted(numbers))
        placement = tuple(sorted(numbers))
        self.map = map_ = ServerMap(version, named, placement, placement, self.replicas)
        for server in self.servers.values():
            self.network.send(self._keeper, server, lambda server=server: server.hear_map(map_))
        for first, second in itertools.combinations(self.members, 2):
            if not self.network.is_linked(first, second):
                self.network.after(
                    self.network.delay(), lambda first=first, second=second: self.network.connect(first, second)
                )
        for listener in self.listeners:
            listener(map_)
