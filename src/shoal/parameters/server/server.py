"""A parameter server: one thread that serves workers, other servers and the keeper, and works on blocks in between.

In every turn connections are served, then one unit of every job is worked on, then results are sent; beats to the
keeper go out in between. Jobs do not know of each other and must not affect each other: an exception in one of them
ends that job alone (`_within`). The server ends when the map no longer names it, when the keeper refuses it, or when
the keeper is gone for too long. Not here: what a job's messages mean (`space`, `worker_desk`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from shoal.errors import Refused, ServerRefused, ServerUnfit, ShoalError, WireError
from shoal.parameters import texts
from shoal.parameters.blocks.memory_budget import MemoryBudget
from shoal.parameters.connections import trouble_log
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.doorway import Doorway
from shoal.parameters.connections.purposes import SERVER_PURPOSE, job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.server.keeper_line import KeeperAt, KeeperLine
from shoal.parameters.server.server_figures import Figures, beat_of
from shoal.parameters.server.server_peers import ServerPeer, ServerPeers
from shoal.parameters.server.space.background import Background
from shoal.parameters.server.space.space import Space
from shoal.parameters.server.space.worker_line import WorkerLine, refuse
from shoal.transport.connection.handshake import Key
from shoal.values import Address, ServerMap
from shoal.wire.keeper_messages import Filled, GroupNews, Intercepted, ServerBeat, SpaceEnd
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.note_frames import MAX_BODY_BYTES
from shoal.wire.parameter_messages import (
    AnyNote,
    Echo,
    EntryRecord,
    Fetch,
    Fetched,
    LedgerCopy,
    PartialNorm,
    Recorded,
    Refusal,
    ServerHello,
    ServerWelcome,
    TotalNorm,
    ViewState,
)

LONGEST_TURN = 0.5  # seconds; beats are due as often
MAX_EARLY = 10_000  # notes for jobs that this server has not heard of yet
LARGEST_COPY = 1 << 30  # bytes of a ledger
LONGEST_REASON = 1000  # characters
LINES_SHARE = 4  # a job may use 1 / LINES_SHARE of the files that this process may have open
FEWEST_LINES = 32

Between = EntryRecord | Recorded | ViewState | LedgerCopy | Fetch | Fetched | PartialNorm | TotalNorm  # between servers


@dataclass(frozen=True)
class ServerConfig:
    keeper: Address
    token: str = field(repr=False)  # of the group
    number: int
    listen: str = "127.0.0.1"  # host; any free port of it
    memory: int = 0  # bytes that it may hold; 0: no limit
    crash_at: Callable[[str], None] = lambda _: None  # called at points where a test may want it to die


class ServerLoop:
    """The server; `run` blocks until `stop`."""

    def __init__(self, config: ServerConfig) -> None:
        self.number = config.number
        self.crash_at = config.crash_at
        self.budget = MemoryBudget(config.number, config.memory, lambda: self._claimed_bytes)
        self.background = Background(self._ring)
        self._token = config.token
        self._board = Switchboard(self._see_to_beat)
        self._figures = Figures(self._board)
        self._door = Doorway(Address(config.listen, 0), self._keys, self)
        at = KeeperAt(config.keeper, config.token, config.number)
        self._keeper = KeeperLine(at, self._door.address, self, self._beat)
        self._door.on_interception = lambda source: self._keeper.send(Intercepted(source=source))
        self._peers = ServerPeers(config.number, config.token, self, self._connected)
        self._map: ServerMap | None = None
        self._spaces: dict[str, Space] = {}
        self._early: list[tuple[int, Between, memoryview | None]] = []  # for jobs that are not known here yet
        self._closed_updates = 0  # applied for jobs that are over
        self._most_lines = max(FEWEST_LINES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // LINES_SHARE)
        self._is_ending = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def address(self) -> Address:
        return self._door.address

    @property
    def held_bytes(self) -> int:
        return sum(space.held_bytes for space in self._spaces.values())

    @property
    def _claimed_bytes(self) -> int:
        return sum(space.claimed_bytes for space in self._spaces.values())

    @property
    def applied_updates(self) -> int:
        return self._closed_updates + sum(space.applied_updates for space in self._spaces.values())

    def stop(self) -> None:
        """From any thread, and from a signal handler."""
        self._is_ending = True
        self._ring()

    def _ring(self) -> None:
        """From any thread: wake the server's thread."""
        with contextlib.suppress(OSError):  # the server has just ended and closed the bell
            os.eventfd_write(self._bell, 1)

    def _answer_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def run(self) -> None:
        """Run until stopped or taken out of the group. `Refused`: the keeper refuses this server, or is gone."""
        try:
            self._board.watch(self._bell, self._answer_bell)
            self._door.open(self._board)
            with torch.inference_mode():
                while not self._is_ending:
                    self._turn()
        finally:
            self._close()

    def _turn(self) -> None:
        due = [self._keeper.tend(self._board), self._peers.tend(self._board), LONGEST_TURN]
        busy = [space for space in self._spaces.values() if space.has_work]
        self._figures.turn()
        self._board.turn(0.0 if busy else min(each for each in due if each is not None))
        for space in busy:
            if self._spaces.get(space.job) is space:
                self._within(space, space.work)
                self._see_to_beat()
        for space in tuple(self._spaces.values()):
            self._within(space, space.desk.relieve)
        self._door.sweep()

    def _see_to_beat(self) -> None:
        """Tell the keeper in time that this server is alive, however busy it is."""
        self._keeper.beat_if_due()

    def _within(self, space: Space, act: Callable[..., None], *arguments: object) -> None:
        """Do something for one job. An exception ends that job on all servers, and no other job."""
        try:
            act(*arguments)
        except ServerUnfit:
            raise
        except ServerRefused as refusal:
            self._fail(space, SpaceEnd(str(refusal), refusal.kind or "failed"))
        except Exception as error:
            trouble_log.write_exception()
            why = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            what = f"server {self.number} cannot go on with job {space.job}: {why}"
            self._fail(space, SpaceEnd(f"{what[:LONGEST_REASON]}; other jobs go on"))

    def _fail(self, space: Space, end: SpaceEnd) -> None:
        try:
            space.fail(end)
        except Exception:  # giving the job up failed too: do nothing more with it
            trouble_log.write_exception()
            space.state.end = end

    def _close(self) -> None:
        for space in self._spaces.values():
            space.close()
        self.background.close()
        self._door.close()
        self._board.unwatch(self._bell)
        self._board.close()
        bell, self._bell = self._bell, -1
        os.close(bell)

    # For spaces (`Site`)

    def to_server(self, number: int, note: Note, payload: memoryview | bytes | None = None) -> None:
        self._peers.send(number, note, payload)

    def to_keeper(self, note: Note) -> None:
        self._keeper.send(note)

    def filled(self) -> None:
        if self._map is not None and all(space.is_filled for space in self._spaces.values()):
            size = sum(space.moves.size for space in self._spaces.values())
            self._keeper.send(Filled(view=self._map.version, size=size))

    # What connections tell (`Hearer`)

    def proved(self, connection: Connection) -> None:
        """The next message says who has connected."""

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        label = connection.label
        if isinstance(label, WorkerLine):
            space = self._space_of(connection)
            return None if space is None else self._found(space, partial(self._room_of, space, label, note, size))
        if isinstance(label, ServerPeer) and isinstance(note, LedgerCopy) and size <= LARGEST_COPY:
            return memoryview(bytearray(size))
        if isinstance(label, ServerPeer) and isinstance(note, Fetched):
            space = self._spaces.get(note.job)  # None: the job has ended meanwhile
            return None if space is None else self._found(space, partial(space.moves.room, note, size))
        raise WireError(f"{type(note).__name__} comes with {size} raw bytes; it should have none here")

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        label = connection.label
        if isinstance(label, WorkerLine):
            if isinstance(note, Echo):
                connection.send(note)
            else:
                self._heard_worker(connection, label, note, payload)
        elif connection is self._keeper.connection:
            self._heard_keeper(note, connection.session)
        elif isinstance(label, ServerPeer):
            if isinstance(note, ServerWelcome):
                self._peers.welcomed(label)
            elif isinstance(note, Between):
                self._heard_server(label.number, note, payload)
        elif isinstance(note, ServerHello):
            self._greet(connection, note)
        else:
            raise WireError(f"a connection begins with {type(note).__name__} instead of Hello")

    def closed(self, connection: Connection, reason: str) -> None:
        self._door.settled(connection)
        label = connection.label
        if connection is self._keeper.connection:
            self._keeper.lost(reason)
        elif isinstance(label, ServerPeer):
            self._peers.lost(label, connection)
        elif isinstance(label, WorkerLine):
            space = self._space_of(connection)
            if space is not None:
                self._within(space, space.desk.left, connection, reason)

    # New connections

    def _keys(self) -> list[Key]:
        jobs = [Key(job_purpose(space.job), space.terms.key) for space in self._spaces.values()]
        return [Key(SERVER_PURPOSE, self._token), *jobs]

    def _greet(self, connection: Connection, hello: ServerHello) -> None:
        if hello.version != PARAMETER_VERSION:
            reason = texts.wrong_version(f"server {self.number}", PARAMETER_VERSION, hello.version)
            connection.send(Refusal(kind="version", reason=reason))
            connection.end()
        elif connection.purpose == SERVER_PURPOSE and hello.server >= 0:
            self._door.settled(connection)
            connection.expect(MAX_BODY_BYTES)
            self._peers.came(connection, hello)
        elif hello.job in self._spaces and connection.purpose == job_purpose(hello.job):
            self._door.settled(connection)
            self._welcome(connection, hello)
        else:
            connection.send(Refusal(kind="bad-request", reason="a Hello for something else than the token is for"))
            connection.end()

    def _welcome(self, connection: Connection, hello: ServerHello) -> None:
        space = self._spaces[hello.job]
        try:
            self._check_lines(space)
            line = WorkerLine(connection, hello, sum(line.mapped for line in space.desk.lines.values()))
        except ServerRefused as refusal:
            connection.send(Refusal(kind=refusal.kind, reason=str(refusal)))
            connection.end()
            return
        connection.label = line
        connection.party, connection.bodies = space.job, space.desk.bodies
        connection.expect(MAX_BODY_BYTES)
        connection.pauses = True
        space.desk.lines[connection] = line
        view = 0 if self._map is None else self._map.version
        connection.send(ServerWelcome(server=self.number, view=view, sees_arena=line.arena is not None))

    def _space_of(self, connection: Connection) -> Space | None:
        return next((space for space in self._spaces.values() if connection in space.desk.lines), None)

    def _heard_worker(
        self, connection: Connection, line: WorkerLine, note: AnyNote, payload: memoryview | None
    ) -> None:
        self._figures.request()
        space = self._space_of(connection)
        if space is not None:
            self._within(space, self._ask, space, line, note, payload)

    def _ask(self, space: Space, line: WorkerLine, note: AnyNote, payload: memoryview | None) -> None:
        try:
            space.desk.heard(line, note, payload)
        except ServerRefused as refusal:
            refuse(line, refusal, getattr(note, "request", 0))

    def _room_of(self, space: Space, line: WorkerLine, note: AnyNote, size: int) -> memoryview | None:
        """Where a worker's bytes go; None: they are read and thrown away."""
        try:
            return space.desk.room(line, note, size)
        except ServerRefused as refusal:
            refuse(line, refusal, 0)
            return None

    def _found(self, space: Space, look: Callable[[], memoryview | None]) -> memoryview | None:
        """Room in one job's memory; None also if looking for it raises, which ends that job."""
        found: list[memoryview | None] = []
        self._within(space, lambda: found.append(look()))
        return found[0] if found else None

    def _check_lines(self, space: Space) -> None:
        """If there are several jobs, each must leave file descriptors for the others."""
        if len(self._spaces) > 1 and len(space.desk.lines) >= self._most_lines:
            raise ServerRefused(
                f"job {space.job} has {len(space.desk.lines)} connections to server {self.number}, a quarter of what "
                "it may have open: start the servers with a higher limit of open files (ulimit -n)",
                kind="bad-request",
            )

    # The keeper

    def _heard_keeper(self, note: AnyNote, session: bytes) -> None:
        if isinstance(note, Refusal):
            raise Refused(f"the keeper turned server {self.number} away: {note.reason}")
        if not isinstance(note, GroupNews):
            raise WireError(f"the keeper says {type(note).__name__}")
        self._keeper.found()
        known = {sealed.job: sealed for sealed in note.spaces}
        over = [job for job in self._spaces if job not in known]
        for job in over:
            space = self._spaces.pop(job)
            self._closed_updates += space.applied_updates
            self._within(space, space.close)
        new = [SpaceTerms.opened(sealed, session) for job, sealed in known.items() if job not in self._spaces]
        for terms in new:
            space = self._spaces[terms.job] = Space(terms, self)
            if self._map is not None:
                self._within(space, space.new_map, self._map)
        for sealed in note.spaces:
            if sealed.end is not None:
                self._within(self._spaces[sealed.job], self._spaces[sealed.job].end, sealed.end)
        if note.map is not None and (self._map is None or note.map.version > self._map.version):
            self._adopt(note.map)
        if over:
            self.filled()  # perhaps blocks were on their way only for the jobs that are over
        if new:
            early, self._early = self._early, []
            for sender, between, payload in early:
                self._heard_server(sender, between, payload)

    def _adopt(self, servers: ServerMap) -> None:
        was_in = self._map is not None and self._map.server(self.number) is not None
        self._map = servers
        if servers.server(self.number) is None:
            self._is_ending |= was_in  # otherwise this server is not in the map yet
            return
        self._peers.adopt(servers)
        for space in tuple(self._spaces.values()):
            self._within(space, space.new_map, servers)
        self.filled()

    def _beat(self) -> ServerBeat:
        homes = ((space.job, space.state.sequencer.home_ledger) for space in self._spaces.values())
        ledgers = [(job, ledger) for job, ledger in homes if ledger is not None]
        return beat_of(self._figures.take(self), ledgers, self._peers.unreached())

    # Other servers

    def _connected(self, number: int) -> None:
        for space in tuple(self._spaces.values()):
            self._within(space, space.connected, number)

    def _heard_server(self, sender: int, note: Between, payload: memoryview | None) -> None:
        space = self._spaces.get(note.job)
        if space is None:
            if len(self._early) < MAX_EARLY:
                self._early.append((sender, note, payload))
        elif isinstance(note, Fetch):
            self._within(space, space.moves.fetch, sender, note)
        elif isinstance(note, Fetched):
            self._within(space, space.fetched, sender, note, payload)
        elif isinstance(note, PartialNorm | TotalNorm):
            self._within(space, space.updates.heard, sender, note)
        else:
            self._within(space, space.recorded, sender, note, payload)
