"""The queue of bytes to be sent on one connection, handed to the kernel with as few calls as possible.

Nothing is copied: queued memory must not change until it has left, or until `detach` is called for it.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from itertools import islice
from typing import Generic, TypeVar

from shoal.transport.connection.endpoint import Endpoint

MOST_PIECES = 64  # handed over in one call

Mark = TypeVar("Mark")


class SendQueue(Generic[Mark]):
    """In order; part of the first piece may have left. A piece's mark is handed back when all of the piece has left."""

    __slots__ = ("_gone", "_marks", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._marks: deque[Mark | None] = deque()  # one for each piece
        self._gone: list[Mark] = []  # marks of pieces that have left
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return self.size > 0

    def add(self, data: memoryview | bytes, mark: Mark | None = None) -> None:
        """Empty data is not queued, and its mark is not handed back."""
        piece = memoryview(data)
        if piece.format != "B" or piece.ndim != 1:
            piece = piece.cast("B")
        if size := len(piece):
            self._pieces.append(piece)
            self._marks.append(mark)
            self.size += size

    def detach(self, mark: Mark) -> None:
        """The memory of pieces with this mark is about to change: copy the unsent bytes, and forget the mark."""
        for at, other in enumerate(self._marks):
            if other is not None and other == mark:
                self._pieces[at] = memoryview(bytes(self._pieces[at]))
                self._marks[at] = None

    def clear(self) -> None:
        self._pieces.clear()
        self._marks.clear()
        self._gone = []
        self.size = 0

    def push(self, endpoint: Endpoint, most: int = sys.maxsize) -> int:
        """Hand at most `most` bytes to the kernel. Returns how many it took; 0: it takes nothing now."""
        is_all = self.size <= most and len(self._pieces) <= MOST_PIECES
        try:
            sent = endpoint.sendmsg(self._pieces if is_all else self._first(most))
        except BlockingIOError:
            return 0
        if is_all and sent == self.size:  # the usual case
            self._gone += [mark for mark in self._marks if mark is not None]
            self._pieces.clear()
            self._marks.clear()
            self.size = 0
        else:
            self._release(sent)
        return sent

    def _first(self, most: int) -> list[memoryview]:
        """The first pieces, as many as one call takes, with at most `most` bytes."""
        batch, size = [], 0
        for piece in islice(self._pieces, MOST_PIECES):
            size += len(piece)
            if size >= most:
                batch.append(piece[: len(piece) - (size - most)])
                break
            batch.append(piece)
        return batch

    def _release(self, sent: int) -> None:
        self.size -= sent
        while sent:
            piece = self._pieces[0]
            if len(piece) > sent:
                self._pieces[0] = piece[sent:]
                break
            sent -= len(piece)
            self._pieces.popleft()
            mark = self._marks.popleft()
            if mark is not None:
                self._gone.append(mark)

    def take_gone(self) -> list[Mark]:
        """Marks of pieces that have left since the last call, in order."""
        if not self._gone:
            return []
        gone, self._gone = self._gone, []
        return gone


def send_all(endpoint: Endpoint, data: bytes) -> None:
    """Send all data over a non-blocking endpoint, waiting while it takes nothing."""
    left = memoryview(data)
    while left:
        try:
            left = left[endpoint.send(left) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(endpoint, select.POLLOUT)
            poll.poll()
