"""How the entries of a job's ledger get one order on all servers. Pure: events in, instructions out; one per job.

The home server (the first of the map) numbers entries and records them on the others, which take them in order. A
worker gets an answer only when enough staying servers have the entry that led to it: as many as hold a block, and at
least two if there are two.

Every version of the map is a *view*. In a new view every server tells home which entries it has. When all have, home
takes over the entries that it lacks itself, brings the others up to date and begins the view with an entry of its own.
Messages of older views are dropped; those of newer views are kept until the map is known. Home changes only when it
leaves the map, for good, so entries never differ between servers: one server has a beginning of what the other has.

Messages to a server may be lost with the connection. On a new one (`connected`) a follower tells home again which
entries it has, and is sent those that it lacks. The ledger recognises what workers propose again.

Not here: sockets, and what effects do (`space`, `server`).
"""

from __future__ import annotations

import dataclasses

import msgspec

from shoal.bounds import Items, Total
from shoal.parameters.ledger.effects import Begun, Effect, LedgerEnded, Reply
from shoal.parameters.ledger.ledger import Ledger
from shoal.values import ServerMap
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry, Begin
from shoal.wire.parameter_messages import EntryRecord, LedgerCopy, Recorded, ViewState

AnyRecord = EntryRecord | Recorded | ViewState | LedgerCopy  # messages between servers that this module handles
NONE = -1  # stands for the number of the last entry if a server has no ledger


@dataclasses.dataclass(frozen=True)
class SendToServer:
    """To another server; dropped while there is no connection. The space adds the table to a LedgerCopy."""

    server: int
    note: AnyRecord
    payload: bytes = b""


@dataclasses.dataclass(frozen=True)
class SendToWorker:
    """To a worker, if it is connected."""

    worker: int
    answer: AnyAnswer


@dataclasses.dataclass(frozen=True)
class Redirect:
    """This server is not home: the worker needs the present map."""

    worker: int
    request: int


@dataclasses.dataclass(frozen=True)
class Installed:
    """A copy of the ledger is in place. If this server had a ledger, it has missed entries and thus updates of blocks:
    what it holds of the job is out of date, and it must not go on with the job."""

    number: int
    had_one: bool


Instruction = SendToServer | SendToWorker | Redirect | Installed | Effect


class _Copy(msgspec.Struct):
    """Payload of a LedgerCopy."""

    ledger: Ledger
    stable: Total
    log: Items[tuple[Total, AnyEntry]]  # entries after the stable one: the receiver may have to pass them on


# Made at import: msgspec crashes if two threads use a type for the first time at once.
_copies = msgspec.msgpack.Decoder(_Copy)


class Sequencer:
    """One server's side of ordering a job's entries."""

    def __init__(self, job: str, server: int) -> None:
        self.ledger: Ledger | None = None  # None: this server has none yet
        self.is_begun = False  # home: the view has begun, proposals are taken
        self._job = job
        self._me = server
        self._map: ServerMap | None = None
        self._log: dict[int, AnyEntry] = {}  # by number: entries that some server of the view may lack
        self._stable = 0  # all servers of the view have every entry up to this number
        self._later: list[tuple[int, AnyRecord, bytes]] = []  # messages of newer views
        self._states: dict[int, ViewState] = {}  # home, before the view begins: what each of the others has
        self._recorded: dict[int, int] = {}  # home, begun: by server, the number up to which it has every entry
        self._proposals: dict[int, tuple[int, AnyEntry]] = {}  # by worker: (view, entry), until the view begins
        self._answers: dict[int, AnyAnswer] = {}  # home: by worker, until enough servers have the entry

    @property
    def is_home(self) -> bool:
        return self._map is not None and bool(self._map.servers) and self._map.home.number == self._me

    @property
    def number(self) -> int:
        """The number of the last entry."""
        return NONE if self.ledger is None else self.ledger.number

    @property
    def home_ledger(self) -> Ledger | None:
        """The ledger, if this server is home."""
        return self.ledger if self.is_home else None

    @property
    def pending(self) -> int:
        """How many entries are kept: some server may lack them, or they wait for the view to begin."""
        return len(self._log) + len(self._proposals)

    # Events

    def new_map(self, map_: ServerMap) -> list[Instruction]:
        if map_.version <= self._view:
            return []
        self._map = map_
        self.is_begun = False
        self._states, self._recorded = {}, {}
        if self._is_out:
            return []  # this server may come in later: keep messages of newer views
        out: list[Instruction] = []
        if self.is_home:
            self._begin_if_all_spoke(out)
        else:
            out.append(SendToServer(map_.home.number, self._view_state()))
        later, self._later = self._later, []
        for sender, note, payload in later:
            out += self.heard(sender, note, payload)
        proposals, self._proposals = self._proposals, {}
        for view, entry in proposals.values():
            out += self.proposed(entry, view)
        return out

    def connected(self, server: int) -> list[Instruction]:
        """There is a new connection to `server`; what was sent on the old one may be lost."""
        if self._map is None or self.is_home or self._map.home.number != server or self._is_out:
            return []
        return [SendToServer(server, self._view_state())]

    def heard(self, sender: int, note: AnyRecord, payload: bytes = b"") -> list[Instruction]:
        """A message from another server."""
        if note.view > self._view:
            self._later.append((sender, note, payload))
            return []
        out: list[Instruction] = []
        if note.view < self._view or self._map is None or self._is_out or self._map.server(sender) is None:
            return out
        is_from_home = sender == self._map.home.number
        if isinstance(note, ViewState):
            self._hear_state(sender, note, out)
        elif isinstance(note, LedgerCopy) and (is_from_home or self.is_home):
            self._install(payload, out)
        elif isinstance(note, EntryRecord) and is_from_home:
            self._hear_record(note, out)
        elif isinstance(note, Recorded) and self.is_begun:
            self._recorded[sender] = max(self._recorded[sender], note.number)
            self._settle(out)
        return out

    def proposed(self, entry: AnyEntry, view: int) -> list[Instruction]:
        """A worker that knows version `view` of the map proposes an entry."""
        if isinstance(entry, Begin):
            return []  # only home makes these
        if view > self._view or (self.is_home and not self.is_begun):
            self._proposals[entry.worker] = (view, entry)
            return []
        if not self.is_home or self.ledger is None:
            return [Redirect(entry.worker, entry.request)]
        out: list[Instruction] = []
        if not self.ledger.has_seen(entry.worker, entry.request):
            self._append(entry, out)
        elif (answer := self.ledger.answer_to(entry.worker, entry.request)) is not None:
            self._answers[entry.worker] = answer
            self._settle(out)
        return out

    # Home

    def _hear_state(self, sender: int, note: ViewState, out: list[Instruction]) -> None:
        if not self.is_home:
            # Home sends its state to others only if it has no ledger: it wants a copy.
            if self.ledger is not None:
                out.append(self._send_copy(sender, self.ledger))
        elif self.is_begun:  # the sender has reconnected
            self._bring_up_to_date(sender, note.number, out)
            self._recorded[sender] = max(self._recorded[sender], note.number)
            self._settle(out)
        else:
            self._states[sender] = note
            self._begin_if_all_spoke(out)

    def _begin_if_all_spoke(self, out: list[Instruction]) -> None:
        if any(server not in self._states for server in self._others):
            return
        if self.ledger is None:
            furthest = max(self._others, key=lambda server: self._states[server].number, default=None)
            if furthest is not None and self._states[furthest].number != NONE:
                out.append(SendToServer(furthest, self._view_state()))
                return
            self.ledger = Ledger()
        self._take_over(out)
        for server in self._others:
            self._recorded[server] = self._states[server].number
            self._bring_up_to_date(server, self._states[server].number, out)
        self.is_begun = True
        self._append(Begin(view=self._view), out)
        proposals, self._proposals = self._proposals, {}
        for view, entry in proposals.values():
            out += self.proposed(entry, view)

    def _take_over(self, out: list[Instruction]) -> None:
        """Take entries that others have and this server lacks, and older entries that a third server may lack."""
        found = {number: entry for state in self._states.values() for number, entry in state.entries}
        self._log = dict(sorted({**found, **self._log}.items()))
        while (following := self.number + 1) in self._log:
            self._apply(following, self._log[following], out)

    def _bring_up_to_date(self, server: int, number: int, out: list[Instruction]) -> None:
        assert self.ledger is not None, "home has a ledger before it brings others up to date"
        missing = range(number + 1, self.number + 1)
        if number == NONE or any(each not in self._log for each in missing):
            out.append(self._send_copy(server, self.ledger))
        else:
            out += [SendToServer(server, self._record(each)) for each in missing]

    def _append(self, entry: AnyEntry, out: list[Instruction]) -> None:
        number = self.number + 1
        self._log[number] = entry
        out += [SendToServer(server, self._record(number)) for server in self._others]
        self._apply(number, entry, out)
        self._settle(out)

    def _settle(self, out: list[Instruction]) -> None:
        """Send answers whose entry enough servers have; forget entries that all servers have.

        Servers that are leaving do not count: several of them may be gone with the next map.
        """
        assert self._map is not None, "a view has begun"
        others = sorted((self._recorded[server] for server in self._others), reverse=True)
        staying = sorted((self._recorded[server] for server in self._others if server in self._map.after), reverse=True)
        needed = min(max(self._map.replicas, 2) - (self._me in self._map.after), len(staying))
        safe = staying[needed - 1] if needed else self.number
        ready = [worker for worker, answer in self._answers.items() if answer.number <= safe]
        out += [SendToWorker(worker, self._answers.pop(worker)) for worker in ready]
        self._forget(others[-1] if others else self.number)

    # Followers

    def _hear_record(self, note: EntryRecord, out: list[Instruction]) -> None:
        if self.ledger is None or note.number > self.number + 1:
            return  # earlier entries were lost with a connection, or are on their way
        if note.number == self.number + 1:
            self._log[note.number] = note.entry
            self._apply(note.number, note.entry, out)
        self._forget(note.stable)
        out.append(self._acknowledgement())

    def _install(self, payload: bytes, out: list[Instruction]) -> None:
        copy = _copies.decode(payload)
        if copy.ledger.number <= self.number:
            if not self.is_home:
                out.append(self._acknowledgement())
            return
        had_one = self.ledger is not None
        self.ledger, self._log, self._stable = copy.ledger, dict(copy.log), copy.stable
        out.append(Installed(self.number, had_one))
        if self.ledger.ended:
            out.append(LedgerEnded(self.number, self.ledger.ended))
            return
        if self.is_home:
            self._begin_if_all_spoke(out)
        else:
            if self.ledger.view == self._view:  # an earlier copy was lost, and this one includes the view's `Begin`
                out.append(Begun(self.number, self._view))
            out.append(self._acknowledgement())

    # Both

    def _apply(self, number: int, entry: AnyEntry, out: list[Instruction]) -> None:
        assert self.ledger is not None, "entries come after the ledger"
        for effect in self.ledger.apply(number, entry):
            if not isinstance(effect, Reply):
                out.append(effect)
            elif self.is_home:
                self._answers[effect.worker] = effect.answer

    def _forget(self, stable: int) -> None:
        if stable > self._stable:
            self._stable = min(stable, self.number)
            self._log = {number: entry for number, entry in self._log.items() if number > self._stable}

    @property
    def _view(self) -> int:
        return 0 if self._map is None else self._map.version

    @property
    def _is_out(self) -> bool:
        return self._map is not None and self._map.server(self._me) is None

    @property
    def _others(self) -> list[int]:
        return [] if self._map is None else [each.number for each in self._map.servers if each.number != self._me]

    def _acknowledgement(self) -> SendToServer:
        assert self._map is not None, "records come after the map"
        return SendToServer(self._map.home.number, Recorded(job=self._job, view=self._view, number=self.number))

    def _record(self, number: int) -> EntryRecord:
        entry, stable = self._log[number], self._stable
        return EntryRecord(job=self._job, view=self._view, number=number, entry=entry, stable=stable)

    def _send_copy(self, server: int, ledger: Ledger) -> SendToServer:
        note = LedgerCopy(job=self._job, view=self._view, number=ledger.number, table=None)
        copy = _Copy(ledger=ledger, stable=self._stable, log=tuple(self._log.items()))
        return SendToServer(server, note, msgspec.msgpack.encode(copy))

    def _view_state(self) -> ViewState:
        return ViewState(job=self._job, view=self._view, number=self.number, entries=tuple(self._log.items()))
