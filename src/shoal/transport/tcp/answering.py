"""Which peers answer while a mesh is being built: a peer that does not connect may be late, or out of reach.

A rank that connects to a peer sees whether the peer answers. A rank that waits for a peer to connect cannot see that,
so it knocks: it connects, says nothing and closes. An established connection proves that packets pass in both
directions, even if the process at the other end is busy or stopped, since its kernel answers.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping

from shoal.transport.connection.name_lookup import NameLookup
from shoal.values import Address

KNOCK_SECONDS = 0.5  # between two knocks at a peer that did not answer the first
REFUSALS = (errno.ECONNREFUSED, errno.ECONNRESET)  # the machine answers, for a process that is gone or busy
LOOK_SECONDS = 0.05  # between two looks at whether an answer is still wanted


class Answers:
    """What is known of each peer, by rank. For one thread, which polls."""

    def __init__(self, poll: select.poll, addresses: Mapping[int, Address]) -> None:
        """`poll` is the caller's, which passes ready descriptors that it does not know to `handle`."""
        self.open: set[int] = set()  # packets pass in both directions
        self._refusing: set[int] = set()  # the machine answers, but nobody listens there, or a firewall refuses us
        self._poll = poll
        self._addresses = addresses
        self._names = NameLookup()
        self._knocks: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: the rank, and its connection
        self._knocking: set[int] = set()  # ranks with a knock under way
        self._again: dict[int, float] = {}  # ranks whose last knock failed: when to try again

    def without(self, peers: Collection[int]) -> list[int]:
        """The peers among these that have not answered in any way."""
        return [peer for peer in peers if peer not in self.open and peer not in self._refusing]

    def failed(self, peer: int, error: OSError) -> None:
        """Note that an attempt to connect to a peer failed."""
        if error.errno in REFUSALS:
            self._refusing.add(peer)

    def knock(self, peers: Collection[int], now: float) -> float:
        """Knock at the peers that have not answered. Returns when to call again."""
        for peer in peers:
            if peer not in self.open and peer not in self._knocking and self._again.get(peer, now) <= now:
                self._again[peer] = now + KNOCK_SECONDS
                self._try(peer, now)
        failed = [self._again[peer] for peer in peers if peer not in self.open and peer not in self._knocking]
        return min([now + KNOCK_SECONDS, *failed])

    def _try(self, peer: int, now: float) -> None:
        address = self._addresses[peer]
        try:
            found = self._names.find(address)
            if found is None:
                self._again[peer] = now + LOOK_SECONDS  # its name is being looked up, in another thread
                return
            connection = socket.socket(found.family, socket.SOCK_STREAM)
        except OSError:
            return
        connection.setblocking(False)
        self._knocks[connection.fileno()] = (peer, connection)
        self._knocking.add(peer)
        self._poll.register(connection, select.POLLOUT)
        if connection.connect_ex(found.place) not in (0, errno.EINPROGRESS):
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


def unanswered(addresses: Mapping[int, Address], timeout: float, is_over: Callable[[], bool]) -> list[int]:
    """The ranks whose machines do not answer within `timeout` seconds, or until `is_over` says so."""
    poll = select.poll()
    answers = Answers(poll, addresses)
    deadline = time.monotonic() + timeout
    try:
        while (left := answers.without(addresses)) and (now := time.monotonic()) < deadline and not is_over():
            wake = min(deadline, answers.knock(left, now), now + LOOK_SECONDS)
            for descriptor, _ in poll.poll(max(0.0, wake - now) * 1000):
                answers.handle(descriptor)
        return left
    finally:
        answers.close()
