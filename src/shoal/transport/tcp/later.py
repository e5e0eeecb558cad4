"""Connections of a mesh that are made when they are needed. Whoever sends first connects, for its direction alone.

So two ranks that begin to send to each other at the same time make two connections, and neither has to give way. The
other end's listener welcomes such a connection whatever its process does (`tcp_listener`), so that a rank which
connects waits for nobody's operation. Not here: the connections that a mesh begins with (`tcp`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection
from itertools import count

from shoal.errors import PeerLost, Refused
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.tcp.answering import REFUSALS, unanswered
from shoal.transport.tcp.tcp_handshake import OutgoingConnection, PeerHello
from shoal.transport.tcp.tcp_listener import PeerListener
from shoal.values import Generation, Unreached

RETRY_SECONDS = 0.05  # before the next try to reach a peer, growing with every try
LONGEST_RETRY = 0.5
LOOK_SECONDS = 0.05  # between two looks at whether the mesh has failed


class LaterConnections:
    """One rank's, in one generation. For the thread that drives the mesh."""

    def __init__(self, listener: PeerListener, generation: Generation, rank: int, timeout: float) -> None:
        """`timeout`: seconds within which a peer's machine has to answer."""
        self.wake = listener.wake  # readable when a connection has come
        self._listener = listener
        self._generation = generation
        self._rank = rank
        self._timeout = timeout
        listener.open_to(generation.number)

    def arrived(self) -> list[tuple[int, Endpoint]]:
        """New connections, by the rank that has made them."""
        found = []
        for hello, endpoint in self._listener.late(self._generation.number):
            is_expected = hello.target == self._rank and hello.source < self._generation.size
            if is_expected and hello.source != self._rank and not self._is_cut(hello.source):
                found.append((hello.source, endpoint))
            else:
                endpoint.close()
        return found

    def connect(self, peer: int, bell: int, look: Callable[[], None]) -> Endpoint:
        """Connect to a peer. `look` is called now and then, and when the descriptor `bell` is readable: it may raise.

        `PeerLost`: the peer refuses, or its machine does not answer, until time is up; then `unreached` names it.
        """
        deadline = time.monotonic() + self._timeout
        for tries in count(1):
            is_answered, trouble = self._try(peer, bell, look, deadline)
            if not isinstance(trouble, str):
                return trouble
            if time.monotonic() >= deadline:
                unreached = Unreached() if is_answered else Unreached((peer,))
                raise PeerLost(self._about(peer, trouble), peer=peer, unreached=unreached)
            _sleep(bell, min(LONGEST_RETRY, RETRY_SECONDS * tries))
            look()
        raise AssertionError("unreachable")

    def _try(self, peer: int, bell: int, look: Callable[[], None], deadline: float) -> tuple[bool, Endpoint | str]:
        """Whether the peer's machine has answered, and the connection, or why there is none."""
        if self._is_cut(peer):
            return False, "the link is cut, on purpose"
        hello = PeerHello(generation=self._generation.number, source=self._rank, target=peer)
        try:
            departure = OutgoingConnection(self._generation.members[peer].address, hello, self._listener.token)
        except OSError as error:
            return error.errno in REFUSALS, error.strerror or str(error)
        is_done = False
        try:
            # A machine that answers is waited for: its process may be stopped, and heartbeats tell that.
            while True:
                if _is_ready(departure, bell):
                    is_done = departure.advance()
                    if is_done:
                        return True, departure.endpoint
                elif departure.mask == select.POLLOUT and time.monotonic() >= deadline:
                    return False, "its machine does not answer"
                look()
        except OSError as error:
            return error.errno in REFUSALS, error.strerror or str(error)
        except Refused as refusal:
            raise Refused(f"rank {peer}: {refusal}") from None
        finally:
            if not is_done:
                departure.endpoint.close()

    def unanswered(self, known: Collection[int], timeout: float, is_over: Callable[[], bool]) -> list[int]:
        """The ranks besides the known ones whose machines do not answer within `timeout` seconds."""
        others = (member for member in self._generation.members if member.rank not in (self._rank, *known))
        return unanswered({member.rank: member.address for member in others}, timeout, is_over)

    def close(self) -> None:
        """Close what has come and was not asked for. Later connections are refused."""
        self._listener.close_to(self._generation.number)

    def _is_cut(self, peer: int) -> bool:
        return self._listener.faults.is_cut(self._generation.members[peer].worker)

    def _about(self, peer: int, why: str) -> str:
        member = self._generation.members[peer]
        return f"rank {peer} (worker {member.worker} at {member.address}) cannot be reached: {why}"


def _is_ready(departure: OutgoingConnection, bell: int) -> bool:
    poll = select.poll()
    poll.register(departure.endpoint, departure.mask)
    poll.register(bell, select.POLLIN)
    return any(descriptor != bell for descriptor, _ in poll.poll(1000 * LOOK_SECONDS))


def _sleep(bell: int, seconds: float) -> None:
    """Until something is to be looked at, at most for `seconds`."""
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.poll(1000 * seconds)
