"""A worker's connections: to the keeper, which sends the map, and to every server of the map.

Every server is told the job's table. Lost connections are made again until the map says that the server is gone. All
of it runs in the client's thread, with its lock held. Not here: requests (`parameter_client`, `client_push`,
`client_pull`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from shoal.errors import Refused, ServerRefused, ShoalError
from shoal.parameters.client.client_thread import ClientThread
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.patience import INTERVAL, Listening, Silence
from shoal.parameters.connections.purposes import job_purpose, keeper_job_purpose
from shoal.transport.connection.handshake import Key
from shoal.transport.memory.arena import Offer, PeerArena
from shoal.values import Address, Server, ServerMap
from shoal.wire.keeper_messages import GroupNews, WatchGroup
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import AnyNote, Define, Defined, Echo, Moved, Refusal, ServerHello, ServerWelcome
from shoal.wire.tables import TableSpec

RETRY_SECONDS = 0.02  # delay before reconnecting, times the tries that failed in a row
LONGEST_RETRY = 0.5
REFUSED_SECONDS = 3.0  # how long refusals may go on: a server may hear of a job later than the job's workers do


@dataclass(frozen=True)
class ClientConfig:
    """The settings of a client."""

    keeper: Address
    key: str = field(repr=False)  # of the job's space: `wire.derived_keys.space_key`
    job: str  # its name space in the server group
    worker: int  # number in the job
    on_event: Callable[[MapAdopted], None] | None = None  # called in the client's thread: must be quick
    # Seconds without a complete set of servers after which they count as lost; time while servers start is left out.
    lost_after: float = 30.0
    silence_limit: float = 30.0  # seconds that a server may be silent while this worker waits for it
    on_map: Callable[[ServerMap], None] | None = None  # called in the client's thread with each newer map
    shares_memory: bool = True  # where a server is on this machine; False: all bytes are sent


@dataclass(frozen=True)
class MapAdopted:
    """This worker uses another map now, and is connected to every server of it."""

    version: int
    reason: str  # the keeper's
    seconds: float  # since the earlier servers became unusable


@dataclass(frozen=True)
class Sent:
    """Bytes for servers so far."""

    over_network: int = 0  # sent over connections
    by_memory: int = 0  # read by servers on this machine from this worker's memory instead


class Owner(Protocol):
    """What the connections report to."""

    def map_changed(self) -> None:
        """There is a newer map: all open requests are void and must be made again."""

    def line_ready(self, line: ServerLine, origin: int) -> None:
        """The server is connected and knows the table: it may be asked. `origin`: its ledger's (`Lineage.origin`)."""

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None: ...

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None: ...

    @property
    def is_waiting(self) -> bool:
        """Some activity waits for servers."""


@dataclass
class ServerLine:
    """The connection to one server."""

    server: Server
    connection: Connection | None = None
    is_ready: bool = False
    sees_arena: bool = False  # the server reads this worker's arena: it is on the same machine
    arena: bytes = b""  # offer of the server's own arena, where values were last found
    key_lists: set[bytes] = field(default_factory=set)  # digests that were sent on this connection
    tries: int = 0  # failed connection attempts in a row
    shared: int = 0  # bytes that the server reads from this worker's arena instead of being sent them
    listening: Listening | None = None  # while there is a connection

    def send(self, note: msgspec.Struct, payload: memoryview | bytes | None = None) -> None:
        assert self.connection is not None
        self.connection.send(note, payload)  # type: ignore[arg-type]  # every note is one


class ServerLines:
    """Hears connections (`connection.Hearer`) and passes on to the owner what concerns it."""

    def __init__(self, config: ClientConfig, thread: ClientThread, owner: Owner) -> None:
        self.map: ServerMap | None = None
        self.lines: dict[int, ServerLine] = {}  # by number of the server
        self.failure: ShoalError | None = None  # permanent: every call raises it
        self.trouble = "the keeper of the servers has not been reached yet"  # the newest problem, for people
        self._config = config
        self._thread = thread
        self._owner = owner
        self._table: TableSpec | None = None
        self._offer = b""
        self._keeper: Connection | None = None
        self._keeper_tries = 0
        self._broken_since: float | None = time.monotonic()  # None: all servers of the map can be asked
        self._coming = 0  # servers that are being started, as the keeper says
        self._none_coming_since = time.monotonic()  # when `_coming` became 0, counted only while it is 0
        self._reason = ""  # why the servers could not be used, for people
        self._refused_since: float | None = None
        self._is_closed = False
        self._sent_before = Sent()  # on connections that are closed

    # For the owner

    def start(self) -> None:
        self._connect_keeper()
        self._look_for_silence()

    def serve(self, table: TableSpec, offer: bytes) -> None:
        """From now on, connect to every server, tell it this table and offer it this arena."""
        if self._table is not None and self._table.digest == table.digest:
            return
        self._table, self._offer = table, offer
        self._broken_since = time.monotonic()  # earlier time does not count: nothing needed servers then
        for line in tuple(self.lines.values()):
            self._forget(line)
            self._connect(line)

    @property
    def is_whole(self) -> bool:
        """Every server of the map can be asked."""
        return self.map is not None and bool(self.lines) and all(line.is_ready for line in self.lines.values())

    @property
    def broken_seconds(self) -> float:
        """How long some needed server could not be asked while none were being started.

        Before there is a table, only the map is needed.
        """
        if self._table is None and self.map is not None:
            return 0.0
        if self._broken_since is None or self._coming:
            return 0.0
        return time.monotonic() - max(self._broken_since, self._none_coming_since)

    def ready(self, number: int) -> ServerLine | None:
        line = self.lines.get(number)
        return line if line is not None and line.is_ready else None

    def adopt(self, new: ServerMap | None) -> None:
        if new is None or (self.map is not None and new.version <= self.map.version):
            return
        self.map = new
        self._break(new.reason)
        for number, line in tuple(self.lines.items()):
            if new.server(number) != line.server:
                self._forget(line)
                del self.lines[number]
        for server in new.servers:
            if server.number not in self.lines:
                self.trouble = f"server {server.number} at {server.address} has not answered yet"
                self.lines[server.number] = ServerLine(server)
                self._connect(self.lines[server.number])
        self._owner.map_changed()
        self._mend()
        self._thread.changed.notify_all()
        if self._config.on_map is not None:
            self._config.on_map(new)

    def cease(self) -> None:
        """Make no more connections. From any thread. Existing ones belong to the client's thread, which closes them."""
        self._is_closed = True

    @property
    def sent(self) -> Sent:
        lines, before = tuple(self.lines.values()), self._sent_before
        return Sent(
            before.over_network + sum(line.connection.bytes_out for line in lines if line.connection is not None),
            before.by_memory + sum(line.shared for line in lines),
        )

    @property
    def connections(self) -> tuple[Connection, ...]:
        found = [self._keeper, *(line.connection for line in self.lines.values())]
        return tuple(connection for connection in found if connection is not None)

    # Making connections

    def _connect_keeper(self) -> None:
        if self._is_closed:
            return
        key = Key(keeper_job_purpose(self._config.job), self._config.key)
        try:
            self._keeper = Connection.connecting(self._config.keeper, key, self)
        except OSError as error:
            self._lost_keeper(error.strerror or str(error))
            return
        self._keeper.send(WatchGroup(version=PARAMETER_VERSION, job=self._config.job))
        self._thread.board.add(self._keeper)

    def _lost_keeper(self, reason: str) -> None:
        self._keeper = None
        self._expect(0)
        self.trouble = f"the keeper of the servers at {self._config.keeper}: {reason}"
        self._keeper_tries += 1
        self._thread.later(min(LONGEST_RETRY, RETRY_SECONDS * self._keeper_tries), self._connect_keeper)

    def _expect(self, coming: int) -> None:
        if self._coming and not coming:
            self._none_coming_since = time.monotonic()
        self._coming = coming

    def _connect(self, line: ServerLine) -> None:
        is_current = self.lines.get(line.server.number) is line
        if self._is_closed or self._table is None or line.connection is not None or not is_current:
            return
        key = Key(job_purpose(self._config.job), self._config.key)
        try:
            line.connection = Connection.connecting(line.server.address, key, self)
        except OSError as error:
            self._lost(line, error.strerror or str(error))
            return
        line.connection.label = line
        line.listening = Listening(self._config.silence_limit, time.monotonic())
        line.send(
            ServerHello(
                version=PARAMETER_VERSION,
                job=self._config.job,
                worker=self._config.worker,
                arena=self._offer if self._config.shares_memory else b"",
            )
        )
        self._thread.board.add(line.connection)

    def _lost(self, line: ServerLine, reason: str) -> None:
        self._forget(line)
        self.trouble = f"server {line.server.number} at {line.server.address}: {reason}"
        self._break(self.trouble)
        line.tries += 1
        self._thread.later(min(LONGEST_RETRY, RETRY_SECONDS * line.tries), lambda: self._connect(line))

    def _look_for_silence(self) -> None:
        """Give up connections that are silent too long: while an activity waits, or before the server is ready."""
        if self._is_closed:
            return
        now = time.monotonic()
        for line in tuple(self.lines.values()):
            if line.connection is None or line.listening is None:
                continue
            if line.is_ready and not self._owner.is_waiting:
                line.listening.heard(now)
            state = line.listening.look(now)
            if state is Silence.ASK and line.is_ready:
                line.send(Echo())
            elif state is Silence.LOST:
                self._lost(line, f"it has said nothing for {line.listening.limit:g} s")
        self._thread.later(min(INTERVAL, self._config.silence_limit / 4), self._look_for_silence)

    def _forget(self, line: ServerLine) -> None:
        gone, before = 0 if line.connection is None else line.connection.bytes_out, self._sent_before
        self._sent_before = Sent(before.over_network + gone, before.by_memory + line.shared)
        if line.connection is not None:
            line.connection.close()
        line.connection, line.listening, line.shared = None, None, 0
        line.is_ready = line.sees_arena = False
        line.key_lists.clear()

    def _break(self, reason: str) -> None:
        self._broken_since = self._broken_since or time.monotonic()
        self._reason = reason

    def _mend(self) -> None:
        """If all servers can be asked (again), end the broken period and report it."""
        if not self.is_whole or self._broken_since is None or self.map is None:
            return
        seconds, self._broken_since = time.monotonic() - self._broken_since, None
        if self._config.on_event is not None:
            self._config.on_event(MapAdopted(self.map.version, self._reason, seconds))

    # What connections say

    def proved(self, connection: Connection) -> None:
        self._refused_since = None
        if connection is self._keeper:
            self._keeper_tries = 0
            self.trouble = f"the keeper of the servers at {self._config.keeper} has told no map yet"

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        with self._thread.changed:
            line = connection.label
            return self._owner.room(line, note, size) if isinstance(line, ServerLine) else None

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        with self._thread.changed:
            line = connection.label
            if isinstance(line, ServerLine):
                if line.connection is connection and line.listening is not None:
                    line.listening.heard(time.monotonic())
                    self._heard(line, note, payload)
            elif isinstance(note, GroupNews):
                self._expect(note.coming)
                self.adopt(note.map)
            elif isinstance(note, Refusal):
                self._refuse(note)

    def closed(self, connection: Connection, reason: str) -> None:
        with self._thread.changed:
            self._count_refusals(connection, reason)
            line = connection.label
            if isinstance(line, ServerLine):
                if line.connection is connection:
                    self._lost(line, reason)
            else:
                self._lost_keeper(reason)

    def _heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        if isinstance(note, ServerWelcome):
            assert self._table is not None
            line.sees_arena = note.sees_arena
            line.send(Define(request=0, table=self._table))
        elif isinstance(note, Defined) and not note.request:
            line.is_ready, line.tries = True, 0
            self._mend()
            self._owner.line_ready(line, note.origin)
            self._thread.changed.notify_all()
        elif isinstance(note, Refusal) and not line.is_ready:
            self._refuse(note)
        else:
            if isinstance(note, Moved):
                self.adopt(note.map)
            self._owner.heard(line, note, payload)

    def _refuse(self, note: Refusal) -> None:
        self.failure = self.failure or ServerRefused(note.reason, kind=note.kind)
        self._thread.changed.notify_all()

    def _count_refusals(self, connection: Connection, reason: str) -> None:
        if not connection.was_refused:
            return
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > REFUSED_SECONDS and self.failure is None:
            whom = connection.label.server.address if isinstance(connection.label, ServerLine) else self._config.keeper
            self.failure = Refused(f"the parameter servers ({whom}) turned worker {self._config.worker} away: {reason}")
            self._thread.changed.notify_all()


class PeerArenas:
    """Memory of servers on this machine, by its offer. Used by the script's thread."""

    def __init__(self) -> None:
        self._open: dict[bytes, PeerArena | None] = {}

    def get(self, offer: bytes) -> PeerArena | None:
        """None: it cannot be mapped here."""
        if offer not in self._open:
            try:
                self._open[offer] = PeerArena.open(msgspec.msgpack.decode(offer, type=Offer))
            except msgspec.MsgspecError:
                self._open[offer] = None
        return self._open[offer]

    def keep(self, offers: set[bytes]) -> None:
        """Close all others: their servers are gone."""
        for offer in [offer for offer in self._open if offer not in offers]:
            arena = self._open.pop(offer)
            if arena is not None:
                arena.close()
