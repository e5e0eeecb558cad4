"""Meshes between the threads of one process: the same behaviour as `tcp`, without sockets.

For tests and for single-machine experiments. Payloads are copied when posted, so a sender may change them afterwards.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from shoal.errors import Aborted, ExchangeFailed
from shoal.transport.mesh.mesh import STALL_SECONDS, Mesh
from shoal.transport.mesh.stream_ending import FINISHED, StreamEnding, name_the_lost
from shoal.wire.frames import HEADER_BYTES


class _Hub:
    """What the ranks share. One lock guards all of it."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.changed = [threading.Condition(self.lock) for _ in range(size)]  # wakes the thread of that rank
        self.pieces: dict[tuple[int, int], deque[memoryview]] = {
            (source, target): deque() for source in range(size) for target in range(size) if source != target
        }
        self.endings: dict[int, StreamEnding] = {}

    def end(self, rank: int, ending: StreamEnding) -> None:
        """The first ending counts. The caller holds the lock."""
        self.endings.setdefault(rank, ending)
        for condition in self.changed:
            condition.notify_all()


class InProcessMesh(Mesh):
    def __init__(self, rank: int, size: int, hub: _Hub) -> None:
        self.rank = rank
        self.size = size
        self.bytes_sent = 0
        self.idle_seconds = 0.0
        self._hub = hub
        self._failure: ExchangeFailed | None = None

    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        frame = b"".join((header, *payloads))
        with self._hub.lock:
            self._raise_failure()
            if peer in self._hub.endings:
                self._lose(awaited=None)
                return  # the peer has finished and needs nothing more; bytes it sent may lie here unread
            self._hub.pieces[self.rank, peer].append(memoryview(frame))
            self._hub.changed[peer].notify_all()
        self.bytes_sent += len(frame)

    def receive_into(self, peer: int, buffer: memoryview) -> None:
        got = 0
        while got < buffer.nbytes:
            piece = self._next_piece(peer, buffer.nbytes - got)
            buffer[got : got + len(piece)] = piece
            got += len(piece)

    def _next_piece(self, peer: int, limit: int) -> memoryview:
        """Some of the next bytes from `peer`, as soon as there are any."""
        pieces = self._hub.pieces[peer, self.rank]
        while True:
            with self._hub.lock:
                self._raise_failure()
                if pieces:
                    piece = pieces.popleft()
                    if len(piece) > limit:
                        pieces.appendleft(piece[limit:])
                    return piece[:limit]
                self._lose(awaited=peer)
                started = time.monotonic()
                woken = self._hub.changed[self.rank].wait(STALL_SECONDS)
                self.idle_seconds += time.monotonic() - started
                heads = {} if woken else self._heads(besides=peer)
            if not woken and self.on_stall is not None:
                self.on_stall(heads)  # without the lock: it may post

    def _heads(self, *, besides: int) -> dict[int, bytes]:
        """The caller holds the lock."""
        others = [peer for peer in range(self.size) if peer not in (self.rank, besides)]
        waiting = {peer: self._hub.pieces[peer, self.rank] for peer in others}
        return {peer: bytes(pieces[0][:HEADER_BYTES]) for peer, pieces in waiting.items() if pieces}

    def drain(self) -> None:
        with self._hub.lock:
            self._raise_failure()

    def check(self) -> None:
        with self._hub.lock:
            self._raise_failure()
            self._lose(awaited=None)

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        with self._hub.lock:
            if self._failure is None:
                self._failure = Aborted(reason)
                self._hub.end(self.rank, StreamEnding(announced=True, blamed=blamed))

    def close(self) -> None:
        with self._hub.lock:
            if self._failure is None:
                self._failure = Aborted("the mesh is closed")
                self._hub.end(self.rank, FINISHED)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _lose(self, *, awaited: int | None) -> None:
        """Raise if a rank that is needed is gone. The caller holds the lock."""
        endings = {rank: ending for rank, ending in self._hub.endings.items() if rank != self.rank}
        lost = name_the_lost(endings, own=self.rank, awaited=awaited)
        if lost is not None:
            self._failure = lost
            self._hub.end(self.rank, StreamEnding(announced=True, blamed=lost.peer))
            raise lost


def in_process_meshes(size: int) -> list[InProcessMesh]:
    """One connected mesh per rank, each for a thread of its own."""
    hub = _Hub(size)
    return [InProcessMesh(rank, size, hub) for rank in range(size)]
