"""One connection of a mesh: what is queued for a peer, how each side ends, and what is known of all connections.

Not here: the loop (`tcp_mesh`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.transport.connection.endpoint import ALL, Endpoint
from shoal.transport.connection.sending import SendQueue
from shoal.transport.mesh.faults import LinkFaults
from shoal.transport.mesh.stream_ending import ENDING_BYTES, SILENT, StreamEnding, pack_ending, unpack_ending
from shoal.wire.frames import HEADER_BYTES

UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


@dataclass(frozen=True)
class Lines:
    """What is known of the connections between this worker and its peers."""

    silence_limit: float  # seconds after which a connection whose packets vanish counts as cut
    faults: LinkFaults  # set on purpose
    workers: Mapping[int, int]  # each rank's worker number, by which faults name links


class Stream:
    """The connection to one peer."""

    __slots__ = ("ending", "endpoint", "held", "mask", "outgoing", "peer", "read")

    def __init__(self, peer: int, endpoint: Endpoint) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.outgoing: SendQueue[None] = SendQueue()
        self.ending: StreamEnding | None = None  # set once, when the peer is seen to have closed its side
        self.read = memoryview(b"")  # the part received so far of a piece; may end with a mark, or the start of one
        self.mask = -1  # events registered with poll; -1: not registered
        self.held = False  # a fault set on purpose keeps this stream's bytes from being sent

    def peek_head(self) -> bytes:
        """The first unread bytes, at most a header's length; they stay unread."""
        try:
            return self.endpoint.peek(HEADER_BYTES)
        except OSError:
            return b""

    def peek_ending(self) -> StreamEnding:
        """How the peer ended, from its last bytes, read or unread. Only for a stream that the kernel reports closed."""
        try:
            unread = self.endpoint.peek(ALL)
        except OSError as error:
            if error.errno in UNREACHABLE:
                return SILENT
            unread = b""
        return unpack_ending(bytes(self.read[-ENDING_BYTES:]) + unread)

    def say(self, ending: StreamEnding) -> None:
        """This side's last words."""
        try:
            self.endpoint.send(pack_ending(ending))
        except OSError:
            return  # nobody listens, or there is no room: the closed connection tells the peer enough

    def shut(self, how: int) -> None:
        """`how`: as of `socket.shutdown`."""
        try:
            self.endpoint.shutdown(how)
        except OSError:
            return  # the peer closed it first
