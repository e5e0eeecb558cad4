"""Which peers answer at all, while a mesh comes about: a peer that does not come may be late, or out of reach.

Whoever connects to a peer sees whether it answers. Those who wait to be connected to cannot tell, so they knock: they
connect, say nothing and close. A connection that comes about proves that packets pass in both directions, also where
the process at the other end is busy or stopped, since its kernel answers for it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Collection, Mapping

from shoal.values import Address

KNOCK_SECONDS = 0.5  # between two tries at a peer that did not let a knock through


class Answers:
    """What is known of each peer, by rank. For one thread, which polls."""

    def __init__(self, poll: select.poll, addresses: Mapping[int, Address]) -> None:
        """`poll` is the caller's; what it says of descriptors that are not its own belongs to `handle`."""
        self.open: set[int] = set()  # packets pass in both directions
        self._refusing: set[int] = set()  # the machine answers, but nobody listens there, or somebody keeps us away
        self._poll = poll
        self._addresses = addresses
        self._knocks: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: the rank, and its connection
        self._knocking: set[int] = set()  # ranks of those
        self._again: dict[int, float] = {}  # ranks whose last knock failed: when to try again

    def without(self, peers: Collection[int]) -> list[int]:
        """Of these peers those that have not answered in any way."""
        return [peer for peer in peers if peer not in self.open and peer not in self._refusing]

    def failed(self, peer: int, error: OSError) -> None:
        """A try to connect to a peer came to nothing."""
        if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
            self._refusing.add(peer)

    def knock(self, peers: Collection[int], now: float) -> float:
        """At those of the peers that have not answered. Returns when to call again."""
        for peer in peers:
            if peer not in self.open and peer not in self._knocking and self._again.get(peer, now) <= now:
                self._again[peer] = now + KNOCK_SECONDS
                self._try(peer)
        failed = [self._again[peer] for peer in peers if peer not in self.open and peer not in self._knocking]
        return min([now + KNOCK_SECONDS, *failed])

    def _try(self, peer: int) -> None:
        address = self._addresses[peer]
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, place = found[0]
            connection = socket.socket(family, kind, protocol)
        except OSError:
            return
        connection.setblocking(False)
        self._knocks[connection.fileno()] = (peer, connection)
        self._knocking.add(peer)
        self._poll.register(connection, select.POLLOUT)
        if connection.connect_ex(place) not in (0, errno.EINPROGRESS):
            self._end(connection.fileno())

    def handle(self, descriptor: int) -> None:
        if descriptor not in self._knocks:
            return
        peer, connection = self._knocks[descriptor]
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self.open.add(peer)
        else:
            self.failed(peer, OSError(code, os.strerror(code)))
        self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        peer, connection = self._knocks.pop(descriptor)
        self._knocking.discard(peer)
        connection.close()

    def close(self) -> None:
        for descriptor in tuple(self._knocks):
            self._end(descriptor)
