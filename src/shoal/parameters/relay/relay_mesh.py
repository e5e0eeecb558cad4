"""Byte streams between the workers of a generation through the home server: for workers that only talk to servers.

The same contract as a mesh of direct connections, over one connection to the server, driven by the threads that call.
While a call waits, bytes of all peers are received, so no peer holds up another's. The server reports a member whose
connection closed; the member's last bytes say how it left, as between direct peers. Not here: the server's side
(`relay`, `relay_desk`).
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field

from shoal.errors import Aborted, ExchangeFailed, PeerLost
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.patience import Listening, Silence
from shoal.parameters.connections.purposes import job_purpose
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import Key
from shoal.transport.mesh.mesh import STALL_SECONDS, Mesh
from shoal.transport.mesh.stream_ending import (
    ENDING_BYTES,
    FINISHED,
    StreamEnding,
    credible,
    name_the_lost,
    pack_ending,
    unpack_ending,
)
from shoal.values import Server, ServerMap
from shoal.wire.frames import HEADER_BYTES
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import (
    AnyNote,
    Echo,
    Refusal,
    Relay,
    RelayJoin,
    RelayLost,
    ServerHello,
    ServerWelcome,
)

JOINED_BYTES = 64 * 1024  # a header and payloads of at most this size are copied into one message
PIECE_BYTES = 4 * 1024 * 1024  # larger payloads are cut, so that the server passes on pieces while others arrive
LEAVE_SECONDS = 2.0  # how long to wait for the server to take the last messages
IDLE_FROM = 0.001  # seconds; in a shorter wait, bytes are moving
_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class RelayConfig:
    """Which workers meet, and on which server."""

    server: Server  # the home server of the map
    job: str  # name space
    key: str = field(repr=False)  # of the space
    generation: int
    workers: tuple[int, ...]  # numbers, by rank
    silence_limit: float = 30.0  # seconds that the server may be silent while this worker waits


@dataclass
class _Stream:
    """What has been received from one peer."""

    pieces: deque[memoryview] = field(default_factory=deque)  # unread
    read: memoryview = _NOTHING  # received part of the present piece: may hold an ending mark, or its start
    ending: StreamEnding | None = None

    def end(self) -> None:
        """The peer sends no more. Its last unread bytes say why."""
        self.ending = unpack_ending(bytes(self.read[-ENDING_BYTES:]) + b"".join(self.pieces))


class RelayMesh(Mesh):
    """One rank's end."""

    def __init__(self, config: RelayConfig, rank: int, timeout: float | None = None) -> None:
        """Joins. `PeerLost`: the server did not take the connection within `timeout` seconds (default: the limit of
        its silence)."""
        self.rank = rank
        self.size = len(config.workers)
        self.bytes_sent = 0
        self.idle_seconds = 0.0
        self._config = config
        self._ranks = {worker: peer for peer, worker in enumerate(config.workers)}
        self._streams = {peer: _Stream() for peer in range(self.size) if peer != rank}
        self._direct: tuple[int, memoryview] | None = None  # an awaited peer, and where its next bytes go
        self._direct_filled = 0
        self._failure: ExchangeFailed | None = None
        self._is_welcome = False
        self._is_closed = False
        self._guard = threading.Lock()  # held except while waiting: `abort` comes from another thread
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable from the moment of an abort
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._connection = self._connect()
        self._listening = Listening(config.silence_limit, time.monotonic())
        _open_meshes.add(self)
        try:
            self._await_welcome(time.monotonic() + (config.silence_limit if timeout is None else timeout))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Connection:
        config = self._config
        try:
            connection = Connection.connecting(config.server.address, Key(job_purpose(config.job), config.key), self)
        except OSError as error:
            os.close(self._wake)
            raise self._server_lost(error.strerror or str(error)) from None
        worker = config.workers[self.rank]
        connection.send(ServerHello(version=PARAMETER_VERSION, job=config.job, worker=worker))
        connection.send(RelayJoin(generation=config.generation, workers=config.workers))
        return connection

    def _await_welcome(self, until: float) -> None:
        while not self._is_welcome:
            self._wait(awaited=None)
            if not self._is_welcome and time.monotonic() > until:
                raise self._server_lost("it did not take the connection in time")
        self.idle_seconds = 0.0  # this wait was no peer's fault

    # The contract

    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        size = len(header) + sum(payload.nbytes for payload in payloads)
        with self._guard:
            self._raise_failure()
            self._turn()
            self._raise_failure()
            if self._streams[peer].ending is not None:
                self._lose(awaited=None)
                return  # the peer has finished and needs nothing more; its bytes may still be unread here
            if size <= JOINED_BYTES:
                self._send(peer, memoryview(b"".join((header, *payloads))))
            else:
                self._send(peer, memoryview(header))
                for payload in payloads:
                    data = payload.cast("B")
                    for start in range(0, len(data), PIECE_BYTES):
                        self._send(peer, data[start : start + PIECE_BYTES])
            self.bytes_sent += size
            self._connection.flush()

    def receive_into(self, peer: int, buffer: memoryview) -> None:
        stream = self._streams[peer]
        got, target = 0, buffer.cast("B")
        while got < len(target):
            with self._guard:
                self._raise_failure()
                while stream.pieces and got < len(target):
                    got += _take(stream.pieces, target[got:])
                stream.read = target[:got]
                if got == len(target):
                    break
                if stream.ending is not None:
                    self._lose(awaited=peer)
                self._direct, self._direct_filled = (peer, target[got:]), 0
            try:
                self._wait(awaited=peer)
            finally:
                with self._guard:
                    got += self._direct_filled
                    self._direct, self._direct_filled = None, 0
        stream.read = _NOTHING

    def drain(self) -> None:
        while True:
            with self._guard:
                self._raise_failure()
                self._connection.flush()
                if not self._connection.unsent:
                    return
            self._wait(awaited=None)

    def check(self) -> None:
        with self._guard:
            self._raise_failure()
            self._turn()
            self._raise_failure()
            self._lose(awaited=None)

    def map_changed(self, servers: ServerMap) -> None:
        """From any thread: leave the relay if its server has left the map. That server may be stopped or cut off, and
        still keep its connections."""
        with self._guard:
            if servers.server(self._config.server.number) is None:
                self._leave(self._server_lost(f"it is not in the group any more ({servers.reason})"))

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        with self._guard:
            self._leave(Aborted(reason), blamed)

    def close(self) -> None:
        with self._guard:
            if self._is_closed:
                return
            is_clean = self._failure is None and not self._connection.unsent
            self._failure = self._failure or Aborted("the mesh is closed")
            if is_clean:
                self._take_leave()
            self._is_closed = True
            self._connection.close()
            self._connection.endpoint.close()
            os.close(self._wake)

    def close_in_child(self) -> None:
        """After a fork: the connection is the parent's. Close it in the child without sending anything."""
        self._guard = threading.Lock()  # the parent's other threads may have held it
        self._failure = Aborted("a forked child takes no part in its parent's exchanges")
        if not self._is_closed:
            self._is_closed = True
            self._connection.endpoint.close()
            os.close(self._wake)

    # What the connection says (`connection.Hearer`); the guard is held

    def proved(self, connection: Connection) -> None:
        """The server has the key of the job's space."""

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        del connection
        if not isinstance(note, Relay) or note.generation != self._config.generation or note.peer not in self._ranks:
            return None
        peer = self._ranks[note.peer]
        if self._direct is not None and self._direct[0] == peer and not self._streams[peer].pieces:
            left = self._direct[1][self._direct_filled :]
            if size <= len(left):
                return left[:size]
        return memoryview(bytearray(size))

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        del connection
        self._listening.heard(time.monotonic())
        if isinstance(note, ServerWelcome):
            self._is_welcome = True
        elif isinstance(note, Refusal):
            self._leave(self._server_lost(f"it refused: {note.reason}"))
        elif isinstance(note, Relay) and payload is not None and note.peer in self._ranks:
            peer = self._ranks[note.peer]
            if self._direct is not None and self._direct[0] == peer and payload.obj is self._direct[1].obj:
                self._direct_filled += len(payload)
                self._streams[peer].read = payload
            elif len(payload):
                self._streams[peer].pieces.append(payload)
        elif isinstance(note, RelayLost) and note.generation == self._config.generation and note.peer in self._ranks:
            self._streams[self._ranks[note.peer]].end()

    def closed(self, connection: Connection, reason: str) -> None:
        del connection
        self._leave(self._server_lost(reason))

    # Pieces of the above; the guard is held, except in `_wait`

    def _wait(self, *, awaited: int | None) -> None:
        """Wait until bytes can be received or sent; raise if a peer is gone or the mesh was aborted."""
        with self._guard:
            self._raise_failure()
            self._connection.flush()
            self._watch()
        started = time.monotonic()
        is_eager = self._connection.is_eager
        ready = self._poll.poll(0 if is_eager else 1000 * STALL_SECONDS)
        now = time.monotonic()
        if now - started >= IDLE_FROM:
            self.idle_seconds += now - started
        with self._guard:
            self._raise_failure()
            self._handle(ready)
            self._look_for_silence(now)
            self._raise_failure()
            if awaited is None or not (self._direct_filled or self._streams[awaited].pieces):
                self._lose(awaited=None)
            heads = {} if ready or is_eager else self._heads(besides=awaited)
        if not ready and not is_eager and self.on_stall is not None:
            self.on_stall(heads)  # without the guard, as it may post

    def _look_for_silence(self, now: float) -> None:
        """A stopped server keeps its connections to this worker and to all peers: only its silence shows it."""
        state = self._listening.look(now)
        if state is Silence.ASK and self._is_welcome:
            self._connection.send(Echo())
            self._connection.flush()
        elif state is Silence.LOST:
            self._leave(self._server_lost(f"it has said nothing for {self._listening.limit:g} s"))

    def _turn(self, timeout: float = 0.0) -> None:
        """Send and receive what is possible now, or within `timeout` seconds."""
        self._connection.flush()
        self._watch()
        self._handle(self._poll.poll(0 if self._connection.is_eager else 1000 * timeout))

    def _watch(self) -> None:
        wanted = self._connection.mask
        mask = (select.POLLIN if wanted & selectors.EVENT_READ else 0) | (
            select.POLLOUT if wanted & selectors.EVENT_WRITE else 0
        )
        self._poll.register(self._connection.endpoint, mask)

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        for descriptor, happened in ready:
            if descriptor == self._wake or self._connection.is_closed:
                continue
            is_over = happened & (select.POLLHUP | select.POLLERR)
            events = selectors.EVENT_READ if happened & select.POLLIN or is_over else 0
            events |= selectors.EVENT_WRITE if happened & select.POLLOUT or is_over else 0
            self._connection.ready(events)
        if self._connection.is_eager:
            self._connection.ready(selectors.EVENT_READ)

    def _send(self, peer: int, data: memoryview) -> None:
        self._connection.send(Relay(generation=self._config.generation, peer=self._config.workers[peer]), data)

    def _heads(self, *, besides: int | None) -> dict[int, bytes]:
        waiting = {peer: stream.pieces for peer, stream in self._streams.items() if peer != besides}
        return {peer: bytes(b"".join(pieces)[:HEADER_BYTES]) for peer, pieces in waiting.items() if pieces}

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _lose(self, *, awaited: int | None) -> None:
        """Raise if a peer that is needed is gone; names the peer that went first, as far as can be told."""
        streams = self._streams.items()
        endings = {peer: credible(stream.ending, self.size) for peer, stream in streams if stream.ending is not None}
        lost = name_the_lost(endings, own=self.rank, awaited=awaited)
        if lost is not None:
            self._leave(lost, lost.peer)
            self._raise_failure()

    def _leave(self, failure: ExchangeFailed, blamed: int | None = None) -> None:
        """Fail from now on and let the peers know."""
        if self._failure is not None:
            return
        self._failure = failure
        os.eventfd_write(self._wake, 1)
        if not self._connection.unsent:
            self._say(StreamEnding(announced=True, blamed=blamed))
        _shut(self._connection.endpoint)

    def _take_leave(self) -> None:
        """Say that all is done, and wait until the server has it: closing with bytes unread would destroy it."""
        self._say(FINISHED)
        until = time.monotonic() + LEAVE_SECONDS
        is_shut = False
        while not self._connection.is_closed and (left := until - time.monotonic()) > 0:
            if not is_shut and not self._connection.unsent:
                is_shut = True
                _shut(self._connection.endpoint)
            self._turn(left)

    def _say(self, ending: StreamEnding) -> None:
        """Send this ending to all peers, as far as the kernel takes it."""
        for peer in self._streams:
            self._send(peer, memoryview(pack_ending(ending)))
        self._connection.flush()

    def _server_lost(self, reason: str) -> PeerLost:
        server = self._config.server
        return PeerLost(
            f"server {server.number} at {server.address}, through which the workers of generation "
            f"{self._config.generation} talk to each other, is gone: {reason}"
        )


def _shut(endpoint: Endpoint) -> None:
    try:
        endpoint.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the server has closed it already


def _take(pieces: deque[memoryview], target: memoryview) -> int:
    piece = pieces.popleft()
    size = min(len(piece), len(target))
    target[:size] = piece[:size]
    if size < len(piece):
        pieces.appendleft(piece[size:])
    return size


_open_meshes: weakref.WeakSet[RelayMesh] = weakref.WeakSet()


def _close_in_child() -> None:
    for mesh in tuple(_open_meshes):
        mesh.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
