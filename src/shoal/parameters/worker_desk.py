"""What the workers of one job ask of a server: to define the table, to stage pushes, to take proposals, to send values.

Whatever they say is checked and answered, or refused with a sentence (`ServerRefused`, which the server sends on). What
goes by another version of the map than has begun here is answered with the newest (`Moved`). Not here: the ledger and
the blocks (`space`), bytes between workers (`relay_desk`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shoal.errors import ServerRefused
from shoal.parameters.connection import Connection
from shoal.parameters.job_state import JobState
from shoal.parameters.placement import keys_digest
from shoal.parameters.pull_desk import PullDesk
from shoal.parameters.relay_desk import RelayDesk
from shoal.parameters.update_rules import check_terms
from shoal.parameters.worker_link import WorkerLink, refuse
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry, Assign, Begin, Push
from shoal.wire.parameter_messages import (
    Answered,
    AnyNote,
    Define,
    Defined,
    KeyList,
    Moved,
    Propose,
    Pull,
    Relay,
    RelayJoin,
    Released,
    Stage,
    StageDone,
    StageEnd,
)
from shoal.wire.tables import PushId, TableSpec

KEPT_DECISIONS = 64  # newest decided pushes of each worker


class WorkerDesk:
    def __init__(
        self, state: JobState, define: Callable[[TableSpec], None], propose: Callable[[AnyEntry, int], None]
    ) -> None:
        """`define` and `propose` are the space's; the former may refuse."""
        self.links: dict[Connection, WorkerLink] = {}
        self._state = state
        self._define = define
        self._propose = propose
        self._pulls = PullDesk(state)
        self._relay = RelayDesk()
        self._defines: list[tuple[WorkerLink, Define]] = []  # until the map has begun
        self._proposers: dict[int, WorkerLink] = {}  # by worker: who proposed last
        self._stagers: dict[int, WorkerLink] = {}
        self._decided: dict[int, OrderedDict[int, None]] = {}  # by worker: numbers of pushes

    # From the server

    def room(self, link: WorkerLink, note: AnyNote, size: int) -> memoryview | None:
        if isinstance(note, Stage):
            return self._stage_room(link, note, size)
        if isinstance(note, Relay):
            return self._relay.room(size)
        raise ServerRefused(
            f"{type(note).__name__} comes with {size} raw bytes; it should have none", kind="bad-request"
        )

    def heard(self, link: WorkerLink, note: AnyNote, payload: memoryview | None) -> None:
        if isinstance(note, Stage):
            self._staged(link, note, payload)
        elif isinstance(note, Pull):
            self._pull(link, note)
        elif isinstance(note, Propose):
            self._take_proposal(link, note)
        elif isinstance(note, StageEnd):
            self._end_stage(link, note)
        elif isinstance(note, Define):
            self._defines.append((link, note))
            self._answer_defines()
        elif isinstance(note, KeyList):
            self._learn(link, note)
        elif isinstance(note, Relay):
            self._relay.frame(link, note, payload)
        elif isinstance(note, RelayJoin):
            self._relay.join(link, note)
        else:
            raise ServerRefused(f"{type(note).__name__} is nothing that a worker tells a server", kind="bad-request")

    def left(self, connection: Connection, reason: str) -> None:
        """What it staged in part goes. What is whole may have been proposed: the ledger says what becomes of it."""
        link = self.links.pop(connection, None)
        if link is None:
            return
        self._relay.left(link, reason)
        self._pulls.forget(link)
        self._defines = [(other, note) for other, note in self._defines if other is not link]
        if self._proposers.get(link.worker) is link:
            del self._proposers[link.worker]
        if self._stagers.get(link.worker) is link:
            del self._stagers[link.worker]
            self._drop_parts(link.worker)
        link.close()

    def _drop_parts(self, worker: int, only: PushId | None = None) -> None:
        if (holding := self._state.holding) is None:
            return
        for push in holding.staging.of_worker(worker):
            staged = holding.staging.find(push)
            if staged is not None and not staged.is_complete and only in (None, push):
                holding.staging.drop(push)

    def close(self) -> None:
        for connection in tuple(self.links):
            self.left(connection, "the job is over")
            connection.end()

    # From the space

    def new_map(self) -> None:
        if not self._state.sequencer.is_home:
            self._relay.end()  # workers find the new home

    def answer(self, worker: int, answer: AnyAnswer) -> None:
        if (link := self._proposers.get(worker)) is not None:
            link.connection.send(Answered(answer=answer))

    def redirect(self, worker: int, request: int) -> None:
        if (link := self._proposers.get(worker)) is not None:
            self._moved(link, request)

    def decided(self, push: PushId, *, tell: bool) -> None:
        """`tell`: some of it was in the worker's memory, which is free again."""
        known = self._decided.setdefault(push.worker, OrderedDict())
        known[push.number] = None
        while len(known) > KEPT_DECISIONS:
            known.popitem(last=False)
        if tell and (link := self._stagers.get(push.worker)) is not None:
            link.connection.send(Released(push=push))

    def detach(self, unit: int) -> None:
        """The unit's bytes are about to change."""
        for connection in self.links:
            connection.detach(unit)

    def look(self) -> None:
        """The ledger or the blocks have changed: who waited may be answered."""
        self._answer_defines()
        self._pulls.look()

    def look_at(self, unit: int) -> None:
        self._pulls.look_at(unit)

    def relieve(self) -> None:
        self._relay.relieve()

    # Tables and lists

    def _answer_defines(self) -> None:
        if not self._defines or not self._state.is_begun:
            return
        defines, self._defines = self._defines, []
        for link, note in defines:
            try:
                self._define(note.table)
            except ServerRefused as refusal:
                refuse(link, refusal, note.request)
                continue
            ledger = self._state.sequencer.ledger
            assert ledger is not None, "the map has begun"
            link.connection.send(Defined(request=note.request, has_values=ledger.has_values))

    def _learn(self, link: WorkerLink, note: KeyList) -> None:
        table = self._state.table
        if table is None:
            raise ServerRefused(f"job {self._state.job} has no table yet: define it first", kind="bad-request")
        if max(note.blocks, default=0) >= 2**32 or min(note.blocks, default=0) < 0:
            raise ServerRefused("a list of keys names blocks that no table has", kind="bad-request")
        if note.digest != keys_digest(table.digest, note.blocks):
            raise ServerRefused("a list of keys has another digest than it is sent with", kind="bad-request")
        link.learn(note)

    def _is_current(self, link: WorkerLink, view: int, keys: bytes | None = None) -> bool:
        """It goes by the map that has begun here, and speaks of this server's blocks as they are."""
        holding, newest = self._state.holding, self._state.map
        if holding is None or newest is None or not view == holding.view == newest.version:
            return False
        if keys is None:
            return True
        link.knows(keys)
        return keys == holding.keys

    def _moved(self, link: WorkerLink, request: int) -> None:
        assert self._state.map is not None, "workers come after the map"
        link.connection.send(Moved(request=request, map=self._state.map))

    # Staging

    def _takes(self, link: WorkerLink, note: Stage) -> bool:
        """False: it is not to be staged, now or for good."""
        if note.push.worker != link.worker:
            raise ServerRefused(f"worker {link.worker} stages a push of worker {note.push.worker}", kind="bad-request")
        if not self._is_current(link, note.view, note.keys):
            link.missed.add(note.push)
            return False
        self._stagers[link.worker] = link
        assert self._state.holding is not None, "it is current"
        staged = self._state.holding.staging.find(note.push)
        return not self._is_decided(note.push) and (staged is None or not staged.is_complete)

    def _is_decided(self, push: PushId) -> bool:
        return push.number in self._decided.get(push.worker, ())

    def _stage_room(self, link: WorkerLink, note: Stage, size: int) -> memoryview | None:
        if note.place >= 0 or not self._takes(link, note):
            return None
        assert self._state.holding is not None, "it is current"
        return self._state.holding.staging.room(note, size)

    def _staged(self, link: WorkerLink, note: Stage, payload: memoryview | None) -> None:
        holding = self._state.holding
        if note.place < 0:
            if payload is not None and len(payload):
                if holding is None or holding.view != note.view:
                    link.missed.add(note.push)  # the map changed while it came
                else:
                    holding.staging.arrived(note)
            return
        if not self._takes(link, note):
            return
        if link.arena is None:
            raise ServerRefused(
                f"worker {link.worker} names a place in its memory, which this server cannot see", kind="bad-request"
            )
        assert holding is not None, "it is current"
        holding.staging.place(note, link.arena)

    def _end_stage(self, link: WorkerLink, note: StageEnd) -> None:
        holding = self._state.holding
        if not note.request:
            self._answer_whether_free(link, note.push)
            return
        if note.push in link.missed or holding is None or not self._is_current(link, note.view):
            link.missed.discard(note.push)
            self._drop_parts(link.worker, note.push)
            self._moved(link, note.request)
            return
        staged = holding.staging.find(note.push)
        if self._is_decided(note.push):
            link.connection.send(Released(push=note.push))
        elif staged is None or not staged.is_complete:
            holding.staging.end(note)
        applied = self._state.queue.applied(self._state.newest)
        link.connection.send(StageDone(request=note.request, push=note.push, applied=applied))

    def _answer_whether_free(self, link: WorkerLink, push: PushId) -> None:
        """After a reconnect: an answer of before may be lost. A push that is not here any more is read by nobody."""
        holding = self._state.holding
        if holding is None or holding.staging.find(push) is None:
            link.connection.send(Released(push=push))
        else:
            self._stagers[link.worker] = link  # who is told later

    # Proposals and values

    def _take_proposal(self, link: WorkerLink, note: Propose) -> None:
        entry, table = note.entry, self._state.table
        if isinstance(entry, Begin) or entry.worker != link.worker:
            raise ServerRefused(f"worker {link.worker} proposes what is not its to propose", kind="bad-request")
        self._proposers[link.worker] = link
        if not self._is_known(link.worker, entry.request):
            if isinstance(entry, Push) and table is not None:
                try:
                    check_terms(table, entry.terms)
                except ServerRefused as refusal:
                    refuse(link, refusal, entry.request)
                    return
            if isinstance(entry, Push | Assign) and self._lacks(entry):
                reason = f"push {entry.push.number} of worker {link.worker} is not staged: stage it before proposing it"
                refuse(link, ServerRefused(reason, kind="bad-request"), entry.request)
                return
        self._propose(entry, note.view)

    def _is_known(self, worker: int, request: int) -> bool:
        ledger = self._state.sequencer.ledger
        return ledger is not None and ledger.has_seen(worker, request)

    def _lacks(self, entry: Push | Assign) -> bool:
        """It cannot be applied here. One of another map is void anyway."""
        holding = self._state.holding
        if holding is None or entry.view != holding.view or not self._state.is_begun or not holding.layout.blocks:
            return False
        staged = holding.staging.find(entry.push)
        return not self._is_decided(entry.push) and (staged is None or not staged.is_complete)

    def _pull(self, link: WorkerLink, note: Pull) -> None:
        if self._is_current(link, note.view, note.keys):
            self._pulls.ask(link, note)
        else:
            self._moved(link, note.request)
