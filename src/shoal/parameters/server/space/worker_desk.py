"""What the workers of one job ask of a server: to define the table, to stage pushes, to take proposals, to send values.

Every request is checked, then answered or refused with a sentence (`ServerRefused`, which the server sends on). A
request under another version of the map than has begun here is answered with the newest map (`Moved`). Not here: the
ledger and the blocks (`space`), bytes between workers (`relay_desk`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import ServerRefused
from shoal.parameters.blocks.placement import keys_digest
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.large_bodies import LargeBodies
from shoal.parameters.ledger.proposals import objection
from shoal.parameters.relay.relay_desk import RelayDesk
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.pull_desk import PullDesk
from shoal.parameters.server.space.stage_desk import StageDesk
from shoal.parameters.server.space.worker_line import WorkerLine, refuse, send_elsewhere
from shoal.parameters.server.updates.update_rules import check_terms
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry, Assign, Begin, Proposal, Push
from shoal.wire.parameter_messages import (
    Answered,
    AnyNote,
    Define,
    Defined,
    Discard,
    KeyList,
    Propose,
    Pull,
    Relay,
    RelayJoin,
    Stage,
    StageEnd,
)
from shoal.wire.tables import PushId, TableSpec

MOST_PENDING = 4096  # entries that some server lacks, or that wait for a view; above it, proposers are held
PROPOSING = "proposing"  # why a connection is held


@dataclass(frozen=True)
class Orders:
    """What the desk asks of the space."""

    define: Callable[[TableSpec], bool]  # may refuse; False: the table is being laid out, so ask again
    propose: Callable[[AnyEntry, int], None]  # an entry, and the version of the map that it goes by
    discard: Callable[[PushId], None]  # a push that will never be proposed


class WorkerDesk:
    def __init__(self, state: JobState, orders: Orders) -> None:
        self.lines: dict[Connection, WorkerLine] = {}
        self.bodies = LargeBodies()
        self._state = state
        self._orders = orders
        self.staging = StageDesk(state, orders.discard)
        self._pulls = PullDesk(state)
        self._relay = RelayDesk()
        self._defines: list[tuple[WorkerLine, Define]] = []  # unanswered: map not begun, or table being laid out
        self._proposers: dict[int, WorkerLine] = {}  # by worker: the connection that it proposed on last
        self._hasty: set[WorkerLine] = set()  # held, as their workers propose faster than servers record

    # From the server

    def room(self, line: WorkerLine, note: AnyNote, size: int) -> memoryview | None:
        if isinstance(note, Stage):
            self._check_room()
            return self.staging.room(line, note, size)
        if isinstance(note, Relay):
            return self._relay.room(size)
        raise ServerRefused(
            f"{type(note).__name__} comes with {size} raw bytes; it should have none", kind="bad-request"
        )

    def heard(self, line: WorkerLine, note: AnyNote, payload: memoryview | None) -> None:
        if not isinstance(note, Relay | RelayJoin):  # after a refusal, workers must still be able to tell each other
            self._check_room()
        if isinstance(note, Stage):
            self.staging.staged(line, note, payload)
        elif isinstance(note, Pull):
            self._pulls.ask(line, note)
        elif isinstance(note, Propose):
            self._take_proposal(line, note)
        elif isinstance(note, StageEnd):
            self.staging.end(line, note)
        elif isinstance(note, Discard):
            self.staging.discard(line, note)
        elif isinstance(note, Define):
            self._defines.append((line, note))
            self._answer_defines()
        elif isinstance(note, KeyList):
            self._learn(line, note)
        elif isinstance(note, Relay):
            self._relay.frame(line, note, payload)
        elif isinstance(note, RelayJoin):
            self._relay.join(line, note)
        else:
            raise ServerRefused(f"{type(note).__name__} is nothing that a worker tells a server", kind="bad-request")

    def left(self, connection: Connection, reason: str) -> None:
        """Drop what was staged in part. A whole push may have been proposed: the ledger decides about it."""
        line = self.lines.pop(connection, None)
        if line is None:
            return
        self._hasty.discard(line)
        self._relay.left(line, reason)
        self._pulls.forget(line)
        self._defines = [(other, note) for other, note in self._defines if other is not line]
        if self._proposers.get(line.worker) is line:
            del self._proposers[line.worker]
        self.staging.left(line)
        line.close()

    def close(self) -> None:
        for connection in tuple(self.lines):
            self.left(connection, "the job is over")
            connection.end()

    # From the space

    def answer(self, worker: int, answer: AnyAnswer) -> None:
        if (line := self._proposers.get(worker)) is not None:
            line.connection.send(Answered(answer=answer))

    def refuse(self, refusal: ServerRefused) -> None:
        """Refuse everything that the workers wait for."""
        for line in self.lines.values():
            refuse(line, refusal, 0)

    def redirect(self, worker: int, request: int) -> None:
        if (line := self._proposers.get(worker)) is not None:
            send_elsewhere(line, request, self._state)

    def detach(self, unit: int) -> None:
        """The unit's bytes are about to change: copy what is still unsent of them."""
        for connection in self.lines:
            connection.detach(unit)

    def look(self) -> None:
        """The ledger or the blocks have changed: answer what can be answered now."""
        self._answer_defines()
        self._pulls.look()

    def look_at(self, unit: int) -> None:
        self._pulls.look_at(unit)

    def relieve(self) -> None:
        """Readers and servers may have caught up: release the connections that were held for them."""
        self._relay.relieve()
        self._pulls.relieve()
        if self._hasty and self._state.sequencer.pending <= MOST_PENDING // 2:
            hasty, self._hasty = self._hasty, set()
            for line in hasty:
                line.connection.go_on(PROPOSING)

    def _check_room(self) -> None:
        if self._state.end is not None:
            raise ServerRefused(self._state.end.reason, kind=self._state.end.kind)

    # Tables and lists

    def _answer_defines(self) -> None:
        if not self._defines or not self._state.is_begun:
            return
        defines, self._defines = self._defines, []
        for line, note in defines:
            try:
                if not self._orders.define(note.table):
                    self._defines.append((line, note))
                    continue
            except ServerRefused as refusal:
                refuse(line, refusal, note.request)
                continue
            ledger = self._state.sequencer.ledger
            assert ledger is not None, "the map has begun"
            told = Defined(request=note.request, has_values=ledger.has_values, origin=ledger.origin)
            line.connection.send(told)

    def _learn(self, line: WorkerLine, note: KeyList) -> None:
        table = self._state.table
        if table is None:
            raise ServerRefused(f"job {self._state.job} has no table yet: define it first", kind="bad-request")
        if max(note.blocks, default=0) >= 2**32 or min(note.blocks, default=0) < 0:
            raise ServerRefused("a list of keys names blocks that no table has", kind="bad-request")
        if note.digest != keys_digest(table.digest, note.blocks):
            raise ServerRefused("a list of keys has another digest than it is sent with", kind="bad-request")
        line.learn(note)

    # Proposals and values

    def _take_proposal(self, line: WorkerLine, note: Propose) -> None:
        entry = note.entry
        if isinstance(entry, Begin) or entry.worker != line.worker:
            raise ServerRefused(f"worker {line.worker} proposes what is not its to propose", kind="bad-request")
        self._proposers[line.worker] = line
        if not self._is_known(line.worker, entry.request):
            try:
                self._check_proposal(entry)
            except ServerRefused as refusal:
                refuse(line, refusal, entry.request)
                return
        self._orders.propose(entry, note.view)
        if self._state.sequencer.pending > MOST_PENDING and line not in self._hasty:
            self._hasty.add(line)
            line.connection.hold(PROPOSING)

    def _check_proposal(self, entry: Proposal) -> None:
        """Called before the entry is numbered: every server has to apply what is in the ledger."""
        table = self._state.table
        if reason := objection(entry):  # type: ignore[arg-type]  # every proposal is an entry
            raise ServerRefused(f"worker {entry.worker} cannot propose this: {reason}", kind="bad-request")
        if not isinstance(entry, Push | Assign):
            return
        if entry.push.worker != entry.worker:
            raise ServerRefused(
                f"worker {entry.worker} proposes a push of worker {entry.push.worker}", kind="bad-request"
            )
        if table is None:
            raise ServerRefused(f"job {self._state.job} has no table yet: define it first", kind="bad-request")
        if isinstance(entry, Push):
            check_terms(table, entry.terms)
        if self.staging.lacks(entry):
            reason = f"push {entry.push.number} of worker {entry.worker} is not staged: stage it before proposing it"
            raise ServerRefused(reason, kind="bad-request")

    def _is_known(self, worker: int, request: int) -> bool:
        ledger = self._state.sequencer.ledger
        return ledger is not None and ledger.has_seen(worker, request)
