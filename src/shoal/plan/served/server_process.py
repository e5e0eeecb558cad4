"""A simulated parameter server: a process around the live `Sequencer`, with staged pushes that have no bytes.

Not here: the map (`simulated_group`), the workers (`served_worker`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Protocol

from shoal.parameters.ledger.effects import Begun, Drop, LedgerEnded, MayRead, Replace, Reply, Update
from shoal.parameters.ledger.sequencer import Installed, Instruction, Redirect, SendToServer, SendToWorker, Sequencer
from shoal.plan.members.invariants import Violation
from shoal.plan.served.mail import Mail, SimulatedLine
from shoal.plan.world.virtual_time import Action, Process
from shoal.values import Server, ServerMap
from shoal.wire.keeper_messages import Filled, ServerBeat, ServerFigures
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry
from shoal.wire.parameter_messages import AnyNote, LedgerCopy
from shoal.wire.tables import PushId

BEAT_SECONDS = 0.5
UNREACHED_SECONDS = 3.0  # without a connection to another server, after which the keeper is told
STAGED = "what is applied was staged"
COMPLETE = "no server misses an entry"


class ServerSurroundings(Protocol):
    """What a server sees of the simulation."""

    mail: Mail
    servers: dict[int, ServerProcess]  # by number, including dead ones
    histories: dict[bytes, dict[int, AnyEntry]]  # by copy of a ledger: the entries that led to it

    def tell_keeper(self, server: ServerProcess, note: AnyNote) -> None: ...

    def check_read(self, worker: int) -> None: ...


@dataclasses.dataclass
class WaitingPull:
    worker: int
    at_least: int  # number of an entry that the values must contain
    meetings: int  # attended by the worker so far
    is_bounded: bool  # the pull waits for slower workers' clocks
    answer: Callable[[MayRead], None]
    is_wanted: Callable[[], bool]  # its worker still waits for this pull


@dataclasses.dataclass(frozen=True)
class Proposed:
    """A proposal of a worker that knows version `view` of the map, and the way back for the answer."""

    worker: int
    entry: AnyEntry
    view: int
    hear: Callable[[AnyAnswer], None]


class LoggedSequencer(Sequencer):
    """A ledger that keeps every entry it has applied."""

    def __init__(self, server: int, histories: dict[bytes, dict[int, AnyEntry]]) -> None:
        super().__init__("job", server)
        self.log: dict[int, AnyEntry] = {}
        self._histories = histories

    def _install(self, payload: bytes, out: list[Instruction]) -> None:
        before = self.number
        super()._install(payload, out)
        if before < self.number and self.number in self._histories[payload]:
            self.log = {**self._histories[payload], **self.log}

    def _apply(self, number: int, entry: AnyEntry, out: list[Instruction]) -> None:
        self.log[number] = entry
        super()._apply(number, entry, out)


class ServerProcess(Process):
    def __init__(self, around: ServerSurroundings, named: Server) -> None:
        super().__init__(around.mail.time)
        self.named = named
        self.number = named.number
        self.sequencer = LoggedSequencer(named.number, around.histories)
        self.map: ServerMap | None = None
        self.applied: list[tuple[int, tuple[PushId, ...]]] = []  # updates since this server's start
        self._around = around
        self._staged: dict[PushId, int] = {}  # the view of each
        self._early: list[tuple[PushId, int, Action]] = []  # staged under a map that is not known here yet
        self._pulls: list[WaitingPull] = []
        self._defines: list[Callable[[int], None]] = []  # called with the ledger's origin when the map has begun
        self._proposers: dict[int, tuple[SimulatedLine, Callable[[AnyAnswer], None]]] = {}  # by worker
        self._unlinked: dict[int, float] = {}  # by other server of the map: since when there is no connection to it
        self.after(BEAT_SECONDS, self._beat)

    @property
    def view(self) -> int:
        return 0 if self.map is None else self.map.version

    @property
    def has_begun(self) -> bool:
        """Whether the entry that begins the present view is here, and so all entries before it."""
        ledger = self.sequencer.ledger
        return ledger is not None and ledger.view == self.view

    # From the keeper

    def hear_map(self, map_: ServerMap | None) -> None:
        if map_ is None or map_.version <= self.view:
            return
        self.map = map_
        if map_.server(self.number) is None:
            self.die()  # it was taken out
            return
        self._do(self.sequencer.new_map(map_))
        early, self._early = self._early, []
        for push, view, done in early:
            self.stage(push, view, done)

    def _beat(self) -> None:
        if self.map is not None:
            others = [each.number for each in self.map.servers if each.number != self.number]
            now, servers = self.time.now, self._around.servers
            missing = [other for other in others if not self._around.mail.is_up(self, servers[other])]
            self._unlinked = {other: self._unlinked.get(other, now) for other in missing}
        unreached = [other for other, since in self._unlinked.items() if self.time.now - since > UNREACHED_SECONDS]
        beat = ServerBeat(figures=ServerFigures(), unreached=tuple(unreached))
        self._around.tell_keeper(self, beat)
        self.after(BEAT_SECONDS, self._beat)

    # From other servers

    def connected(self, other: int) -> None:
        self._do(self.sequencer.connected(other))

    def hear(self, sender: int, send: SendToServer) -> None:
        self._do(self.sequencer.heard(sender, send.note, send.payload))

    # From workers

    def define(self, tell: Callable[[int], None]) -> None:
        """Tell a connected worker which ledger is here, as soon as the newest map has begun."""
        self._defines.append(tell)
        self._answer_defines()

    def propose(self, line: SimulatedLine, proposal: Proposed) -> None:
        self._proposers[proposal.worker] = (line, proposal.hear)
        self._do(self.sequencer.proposed(proposal.entry, proposal.view))

    def stage(self, push: PushId, view: int, done: Action) -> None:
        if view > self.view:
            self._early.append((push, view, done))
        elif view == self.view:
            self._staged[push] = view
            done()

    def pull(self, pull: WaitingPull) -> None:
        self._pulls.append(pull)
        self._look_at_pulls()

    # Instructions

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendToServer():
                    self._send(instruction)
                case SendToWorker(worker, answer) if worker in self._proposers:
                    line, hear = self._proposers[worker]
                    line.to_worker(partial(hear, answer))
                case SendToWorker():
                    pass  # the worker proposed it to another server
                case Redirect() | Reply():
                    pass  # workers hear of the map from the keeper
                case Installed(number, had_one):
                    if had_one:
                        raise Violation(COMPLETE, f"server {self.number} took a copy at entry {number} over its own")
                case Update(number, pushes):
                    self._apply(number, pushes)
                case Replace(number, push):
                    self._apply(number, (push,))
                case Drop(pushes):
                    self._staged = {push: view for push, view in self._staged.items() if push not in pushes}
                case Begun(_, view):
                    self._begin(view)
                case LedgerEnded(number, reason):
                    raise Violation(COMPLETE, f"entry {number} ended the ledger: {reason}")
        self._answer_defines()
        self._look_at_pulls()

    def _answer_defines(self) -> None:
        ledger = self.sequencer.ledger
        if ledger is not None and self.has_begun:
            defines, self._defines = self._defines, []
            for tell in defines:
                tell(ledger.origin)

    def _send(self, send: SendToServer) -> None:
        target = self._around.servers[send.server]
        if isinstance(send.note, LedgerCopy):
            self._around.histories[send.payload] = dict(self.sequencer.log)
        self._around.mail.send_by_line(self, target, lambda: target.hear(self.number, send))

    def _apply(self, number: int, pushes: tuple[PushId, ...]) -> None:
        for push in pushes:
            if self._staged.pop(push, None) is None:
                raise Violation(STAGED, f"server {self.number} applies {push} in entry {number} and has not got it")
        self.applied.append((number, pushes))

    def _begin(self, view: int) -> None:
        self._staged = {push: its for push, its in self._staged.items() if its >= view}
        if self.map is not None and not self.map.is_settled:
            self.after(self.time.between(0.01, 0.8), lambda: self._around.tell_keeper(self, Filled(view=view)))

    def _look_at_pulls(self) -> None:
        ledger, waiting, self._pulls = self.sequencer.ledger, self._pulls, []
        for pull in waiting:
            reading = MayRead.WAIT
            if ledger is not None and ledger.number >= pull.at_least:
                reading = ledger.may_read(pull.worker, pull.meetings) if pull.is_bounded else MayRead.NOW
            if reading is MayRead.WAIT:
                self._pulls.append(pull)
                continue
            if reading is MayRead.NOW and pull.is_bounded and pull.is_wanted():
                self._around.check_read(pull.worker)
            pull.answer(reading)
