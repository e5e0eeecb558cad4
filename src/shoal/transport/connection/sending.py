"""What waits to be sent on one connection: memory in order, handed to the kernel with as few calls as possible.

Nothing is copied: memory must stay as it is until it has left.
"""

from __future__ import annotations

import select
from collections import deque

from shoal.transport.connection.endpoint import Endpoint

MOST_PIECES = 16  # handed over in one call


class SendQueue:
    """In order; of the first piece some may have left."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return self.size > 0

    def add(self, data: memoryview | bytes) -> None:
        piece = memoryview(data).cast("B")
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def clear(self) -> None:
        self._pieces.clear()
        self.size = 0

    def push(self, endpoint: Endpoint, most: int) -> bool:
        """Send at most so many bytes. False: the kernel takes nothing now."""
        batch, size = [], 0
        for piece in self._pieces:
            batch.append(piece[: most - size])
            size += len(batch[-1])
            if size >= most or len(batch) == MOST_PIECES:
                break
        try:
            sent = endpoint.sendmsg(batch)
        except BlockingIOError:
            return False
        self.size -= sent
        while sent:
            piece = self._pieces[0]
            if len(piece) > sent:
                self._pieces[0] = piece[sent:]
                break
            sent -= len(piece)
            self._pieces.popleft()
        return True


def send_all(endpoint: Endpoint, data: bytes) -> None:
    """Over an endpoint that does not block, and wait while it takes nothing."""
    left = memoryview(data)
    while left:
        try:
            left = left[endpoint.send(left) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(endpoint, select.POLLOUT)
            poll.poll()
