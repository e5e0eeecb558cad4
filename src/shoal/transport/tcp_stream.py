"""One connection of a mesh: what is queued for a peer, and how its side ended. Not here: the loop (`tcp_mesh`)."""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import termios
from collections import deque

from shoal.transport.ending import ENDING_BYTES, SILENT, Ending, unpack_ending
from shoal.wire.frames import HEADER_BYTES

UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Stream:
    """The connection to one peer."""

    __slots__ = ("ending", "held", "mask", "outgoing", "peer", "read", "socket")

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.socket = connection
        self.outgoing: deque[memoryview] = deque()  # in order; the first may be partly sent
        self.ending: Ending | None = None  # set once, when the peer's side was seen to be closed
        self.read = memoryview(b"")  # of the piece that is being received: may hold the start of a mark, or all of it
        self.mask = -1  # what poll is asked for; -1: not registered
        self.held = False  # it has bytes to send and may not, on purpose

    def push(self, most: int) -> bool:
        """Hand some of what is queued to the kernel. False when it takes nothing now."""
        batch, size = [], 0
        for piece in self.outgoing:
            batch.append(piece[: most - size])
            size += len(batch[-1])
            if size >= most or len(batch) == 16:
                break
        try:
            sent = self.socket.sendmsg(batch)
        except BlockingIOError:
            return False
        while sent:
            piece = self.outgoing[0]
            if len(piece) > sent:
                self.outgoing[0] = piece[sent:]
                break
            sent -= len(piece)
            self.outgoing.popleft()
        return True

    def peek_head(self) -> bytes:
        """The first unread bytes, at most a header's length; they stay unread."""
        try:
            return self.socket.recv(HEADER_BYTES, socket.MSG_PEEK)
        except OSError:
            return b""

    def peek_ending(self) -> Ending:
        """What the peer's last bytes say, none of them read. Only for a stream that the kernel reports as closed."""
        waiting = array.array("i", [0])
        try:
            fcntl.ioctl(self.socket, termios.FIONREAD, waiting)
            # All of it has to be looked at: there is no way to look at the end only.
            unread = self.socket.recv(max(1, waiting[0]), socket.MSG_PEEK)
        except OSError as error:
            if error.errno in UNREACHABLE:
                return SILENT
            unread = b""
        return unpack_ending(bytes(self.read[-ENDING_BYTES:]) + unread)
