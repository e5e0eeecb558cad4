"""A mesh over TCP connections: one poll loop that receives, sends posted frames, and notices peers that left.

Not here: how connections are made (`tcp`, `tcp_listener`), a single connection (`tcp_stream`). The kernel reports a
closed connection at once, even one that nobody reads from, so every survivor that is in an operation names a killed
peer. A link whose packets vanish closes nothing: an operation that waits notices it (`silence`).
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping

from shoal.errors import Aborted, ExchangeFailed, PeerLost
from shoal.transport.connection import silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.mesh.mesh import STALL_SECONDS, Mesh
from shoal.transport.mesh.stream_ending import (
    CUT_OFF,
    ENDING_BYTES,
    FINISHED,
    SILENT,
    StreamEnding,
    credible,
    name_the_lost,
    unpack_ending,
)
from shoal.transport.tcp.later import LaterConnections
from shoal.transport.tcp.tcp_stream import UNREACHABLE, Lines, Stream
from shoal.values import Unreached

CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR
# The most bytes that one call hands to the kernel, so that receiving goes on in between. All-reduce of 16 MB, 2 ranks,
# pieces of 128 KB / 256 KB / 512 KB / 2 MB: 9.2 / 7.8 / 7.3 / 7.0 ms. The kernel chooses the size of socket buffers:
# 256 KB gave 8.5 ms, 1 MB and 4 MB the same as not setting them, and a fixed size could not grow on long links.
SEND_BYTES = 2 * 1024 * 1024
IDLE_FROM = 0.001  # seconds; in a shorter wait the peer is moving bytes, in a longer one it is late
HELD_SECONDS = 0.005  # between two looks at a link that is slow on purpose
DOUBT = 0.25  # of the silence limit: `unreached` waits for peers that have owed an answer for this long
ASK_SHARE = 0.5  # of the silence limit: ranks without a connection have this long to answer, once another does not
LOOK_SECONDS = 0.02  # between two looks at whether such a peer has answered
_NOTHING = memoryview(b"")


class TcpMesh(Mesh):
    def __init__(
        self, rank: int, connections: Mapping[int, Endpoint], lines: Lines, later: LaterConnections | None = None
    ) -> None:
        """`connections`: one per other rank, or per peer that this rank begins with; `later` makes the others. All
        belong to the mesh from now on."""
        self.rank = rank
        self.size = len(lines.workers)
        self.bytes_sent = 0
        self.idle_seconds = 0.0
        # Called from any thread, after the mesh has failed, with a rank whose machine does not answer; more may follow.
        self.on_silence: Callable[[int], None] | None = None
        self._lines = lines
        self._looked = time.monotonic()  # when this mesh last checked whether the peers' machines answer
        self._later = later
        self._streams: list[Stream] = []
        self._to: dict[int, Stream] = {}  # by the peer that it leads to
        self._from: dict[int, Stream] = {}  # by the peer that sends on it; may be the one in `_to`
        self._by_descriptor: dict[int, Stream] = {}
        self._unanswered: set[int] = set()  # ranks that this one could not connect to: their machines do not answer
        self._last_words: StreamEnding | None = None  # what all peers are told after a failure
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable from the moment of an abort
        self._poll.register(self._wake, select.POLLIN)
        if later is not None:
            self._poll.register(later.wake, select.POLLIN)
        # Held while frames are queued or handed to the kernel: `abort`, on another thread, marks only between frames.
        self._guard = threading.Lock()
        self._failure: ExchangeFailed | None = None
        self._closed = False
        for peer, connection in sorted(connections.items()):
            self._to[peer] = self._from[peer] = self._add(peer, connection)
        _open_meshes.add(self)

    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        stream = self._to.get(peer) or self._connect(peer)
        with self._guard:
            self._raise_failure()
            was_empty = not stream.outgoing
            stream.outgoing.add(header)
            for payload in payloads:
                stream.outgoing.add(payload)
        self.bytes_sent += len(header) + sum(payload.nbytes for payload in payloads)
        if was_empty:
            self._push(stream)

    def receive_into(self, peer: int, buffer: memoryview) -> None:
        stream = self._from.get(peer) or self._await(peer)
        got, wanted = 0, buffer.nbytes
        while got < wanted:
            self._raise_failure()
            moved = self._push_all()
            try:
                count = stream.endpoint.recv_into(buffer[got:])
            except BlockingIOError:
                if not moved:
                    self._wait(awaited=stream)
                continue
            except OSError as error:
                count = 0
                stream.ending = SILENT if error.errno in UNREACHABLE else None
            if count == 0:
                ending = stream.ending or unpack_ending(bytes(buffer[max(0, got - ENDING_BYTES) : got]))
                # Cut off inside a frame: the peer died, or had to stop because another rank did.
                stream.ending = ending if ending.announced or ending.silent else CUT_OFF
                self._lose(awaited=stream)
            got += count
            stream.read = buffer[:got]
        stream.read = _NOTHING

    def drain(self) -> None:
        self._raise_failure()
        while any(stream.outgoing for stream in self._streams):
            if not self._push_all():
                self._wait(awaited=None)
            self._raise_failure()

    def check(self) -> None:
        self._raise_failure()
        self._lose(awaited=None)
        now = time.monotonic()
        if now - self._looked >= STALL_SECONDS:
            self._looked = now
            self._look_for_silence()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        self._leave(Aborted(reason), blamed)

    def unreached(self, is_over: Callable[[], bool]) -> Unreached:
        """After a failure: all ranks whose machines have not answered this one for the silence limit.

        By then this end of every stream is shut. A reachable machine acknowledges that at once, even for a process that
        is busy or stopped. So this waits only for machines that already owe an answer, until the answer comes, the
        limit is over, or `is_over` says that nobody needs the result.
        """
        limit = self._lines.silence_limit
        is_told = False
        while True:
            with self._guard:
                if self._closed or self._failure is None:
                    return Unreached()
                owed = self._owed()
            doubtful = [peer for peer, seconds in owed.items() if DOUBT * limit <= seconds < limit]
            if is_over() or not doubtful:
                silent = [peer for peer, seconds in owed.items() if seconds >= limit]
                return Unreached(tuple(sorted(silent + self._out_of_reach(owed, is_over))))
            if not is_told and self.on_silence is not None:
                is_told = True
                self.on_silence(doubtful[0])
            time.sleep(LOOK_SECONDS)

    def _owed(self) -> dict[int, float]:
        """For how many seconds each peer's machine has owed an answer. Called after a failure, from any thread."""
        poll = select.poll()  # a new one: the mesh's own thread may still be waiting in `self._poll`
        for stream in self._streams:
            poll.register(stream.endpoint, select.POLLRDHUP)
        for descriptor, happened in poll.poll(0):
            stream = self._by_descriptor[descriptor]
            if happened & CLOSED and stream.ending is None:
                stream.ending = stream.peek_ending()
        owed = dict.fromkeys(self._unanswered, math.inf)
        for stream in self._streams:
            is_silent = stream.ending is not None and stream.ending.silent
            seconds = math.inf if is_silent else silence.unacknowledged(stream.endpoint)
            owed[stream.peer] = max(seconds, owed.get(stream.peer, 0.0))
        return owed

    def _out_of_reach(self, known: Collection[int], is_over: Callable[[], bool]) -> list[int]:
        """Ranks without a connection whose machines do not answer. They are asked only if some machine does not answer:
        whoever decides which ranks go on has to know all pairs that cannot reach each other."""
        if self._later is None or self._last_words is None or not self._last_words.cut:
            return []
        return self._later.unanswered(known, ASK_SHARE * self._lines.silence_limit, is_over)

    def sever(self, worker: int | None) -> None:
        """From any thread: cut the link to a worker, or all links, on purpose. Both ends see a lost connection."""
        with self._guard:
            for stream in () if self._closed else self._streams:
                if worker in (None, self._lines.workers[stream.peer]):
                    stream.shut(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            clean = self._failure is None and not any(stream.outgoing for stream in self._streams)
            self._failure = self._failure or Aborted("the mesh is closed")
        if self._later is not None:
            self._take_in(self._later)
            self._later.close()
        for stream in self._streams:
            if clean:
                stream.say(FINISHED)
            stream.endpoint.close()
        os.close(self._wake)

    def close_in_child(self) -> None:
        """After a fork: close the streams without sending anything on them, since they are the parent's."""
        self._guard = threading.Lock()  # the parent's other threads may have held it
        self._failure = Aborted("a forked child takes no part in its parent's exchanges")
        if not self._closed:
            self._closed = True
            for stream in self._streams:
                stream.endpoint.close()
            os.close(self._wake)

    # Streams

    def _add(self, peer: int, connection: Endpoint) -> Stream:
        stream = Stream(peer, connection)
        connection.setblocking(False)
        silence.watch(connection, self._lines.silence_limit)
        with self._guard:
            self._streams.append(stream)
            self._by_descriptor[connection.fileno()] = stream
            self._say_last(stream)
        return stream

    def _connect(self, peer: int) -> Stream:
        """To a peer that this rank has not begun with."""
        self._raise_failure()
        assert self._later is not None, f"rank {self.rank} has no connection to rank {peer}"
        try:
            connection = self._later.connect(peer, self._wake, self.check)
        except PeerLost as lost:
            self._unanswered.update(lost.unreached.unreachable)
            if self._unanswered and self.on_silence is not None:
                self.on_silence(peer)
            self._leave(lost, peer, cut=bool(self._unanswered))
            self._raise_failure()
            raise
        stream = self._to[peer] = self._add(peer, connection)
        return stream

    def _await(self, peer: int) -> Stream:
        """Wait until a peer that this rank has not begun with sends its first bytes."""
        assert self._later is not None, f"rank {self.rank} has no connection to rank {peer}"
        self._take_in(self._later)
        started = time.monotonic()
        while peer not in self._from:
            self._raise_failure()
            if not self._push_all():
                self._wait(awaited=None)
            if peer not in self._to and time.monotonic() - started >= STALL_SECONDS:
                self._connect(peer)  # so that this rank sees when the peer leaves
            elif peer in self._to and self._to[peer].ending is not None:
                self._lose(awaited=self._to[peer])
        return self._from[peer]

    def _take_in(self, later: LaterConnections) -> None:
        for peer, connection in later.arrived():
            self._from[peer] = self._add(peer, connection)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _push(self, stream: Stream) -> bool:
        try:
            with self._guard:
                self._raise_failure()
                if not self._lines.faults.is_set:
                    return stream.outgoing.push(stream.endpoint, SEND_BYTES) > 0
                return self._push_slowly(stream)
        except OSError as error:
            stream.ending = SILENT if error.errno in UNREACHABLE else stream.peek_ending()
            self._lose(awaited=None)
            stream.outgoing.clear()  # the peer has finished and needs nothing more; bytes it sent may lie here unread
            return False

    def _push_slowly(self, stream: Stream) -> bool:
        """Send while faults are set, perhaps on this link."""
        wanted = min(SEND_BYTES, stream.outgoing.size)
        most = self._lines.faults.allowance(self._lines.workers[stream.peer], wanted)
        stream.held = most < wanted
        return most > 0 and stream.outgoing.push(stream.endpoint, most) > 0

    def _push_all(self) -> bool:
        """True when the kernel took at least one byte."""
        moved = False
        for stream in self._streams:
            if stream.outgoing:
                moved |= self._push(stream)
        return moved

    def _wait(self, *, awaited: Stream | None) -> None:
        """Sleep until there is something to receive or room to send; raise if a peer is gone or we were aborted."""
        is_held = False
        for stream in self._streams:
            # The awaited stream may hold data although its peer closed it: reading it comes to its end anyway.
            mask = select.POLLIN if stream is awaited else select.POLLRDHUP
            is_sending = bool(stream.outgoing) and not stream.held
            self._watch(stream, mask | (select.POLLOUT if is_sending else 0))
            is_held, stream.held = is_held or stream.held, False
        started = time.monotonic()
        ready = self._poll.poll(1000 * (HELD_SECONDS if is_held else STALL_SECONDS))
        now = time.monotonic()
        if now - started >= IDLE_FROM:
            self.idle_seconds += now - started
        self._raise_failure()
        if not ready and not is_held and self.on_stall is not None:
            heads = ((stream.peer, stream.peek_head()) for stream in self._streams if stream is not awaited)
            self.on_stall({peer: head for peer, head in heads if head})
        if now - self._looked >= STALL_SECONDS:
            self._looked = now
            self._look_for_silence()
        closed = False
        for descriptor, happened in ready:
            if self._later is not None and descriptor == self._later.wake:
                self._take_in(self._later)
                continue
            stream = self._by_descriptor[descriptor]
            if happened & CLOSED and stream is not awaited and stream.ending is None:
                stream.ending = stream.peek_ending()
                closed = True
        if closed:
            self._lose(awaited=None)

    def _look_for_silence(self) -> None:
        for stream in self._streams:
            if stream.ending is None and silence.unanswered(stream.endpoint) >= self._lines.silence_limit:
                stream.ending = SILENT
                self._lose(awaited=stream)

    def _watch(self, stream: Stream, mask: int) -> None:
        # Poll would report a closed peer again and again, although its ending is known already.
        mask = -1 if stream.ending is not None and not mask & (select.POLLIN | select.POLLOUT) else mask
        if mask == stream.mask:
            return
        if mask == -1:
            self._poll.unregister(stream.endpoint)
        else:
            self._poll.register(stream.endpoint, mask)
        stream.mask = mask

    def _lose(self, *, awaited: Stream | None) -> None:
        """Raise if a peer that is needed is gone. The error names the rank that left first, as far as can be told."""
        for stream in self._streams:
            self._watch(stream, select.POLLRDHUP)
        for descriptor, happened in self._poll.poll(0):
            if descriptor in self._by_descriptor and happened & CLOSED:
                closed = self._by_descriptor[descriptor]
                closed.ending = closed.ending or closed.peek_ending()
        endings = self._endings()
        lost = name_the_lost(endings, own=self.rank, awaited=None if awaited is None else awaited.peer)
        if lost is not None:
            silent = [rank for rank, ending in endings.items() if ending.silent]
            if silent and self.on_silence is not None:
                self.on_silence(silent[0])
            self._leave(lost, lost.peer, cut=any(ending.silent or ending.cut for ending in endings.values()))
            self._raise_failure()

    def _endings(self) -> dict[int, StreamEnding]:
        """How the peers' streams ended, by rank. Of two streams of one peer, one with its last words says more."""
        found: dict[int, StreamEnding] = {}
        for stream in self._streams:
            if stream.ending is not None and not (stream.peer in found and found[stream.peer].announced):
                found[stream.peer] = credible(stream.ending, self.size)
        return found

    def _leave(self, failure: ExchangeFailed, blamed: int | None, *, cut: bool = False) -> None:
        """Fail from now on and tell the peers. Reading stays open: what they sent may explain more."""
        with self._guard:
            if self._failure is not None:
                return
            self._failure = failure
            self._last_words = StreamEnding(announced=True, blamed=blamed, cut=cut)
            os.eventfd_write(self._wake, 1)
            for stream in self._streams:
                self._say_last(stream)
        if self._later is not None:
            self._take_in(self._later)  # those who have connected are told too

    def _say_last(self, stream: Stream) -> None:
        """After a failure; the caller holds the guard."""
        if self._last_words is not None:
            if not stream.outgoing:
                stream.say(self._last_words)
            stream.shut(socket.SHUT_WR)


_open_meshes: weakref.WeakSet[TcpMesh] = weakref.WeakSet()


def _close_in_child() -> None:
    for mesh in tuple(_open_meshes):
        mesh.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
