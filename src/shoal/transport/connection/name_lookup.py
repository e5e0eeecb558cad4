"""Looks up hosts that are known by name, without keeping the caller waiting.

Numeric addresses need no look-up. A name is looked up in a thread of its own, as the system may take half a minute to
answer; the caller tries again a little later. Answers expire and are then looked up anew.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass

from shoal.values import Address

KEPT_SECONDS = 60.0  # before an answer expires


@dataclass(frozen=True)
class SocketAddress:
    """What a socket needs to connect."""

    family: int
    place: tuple[object, ...]


def find(address: Address, flags: int = 0) -> SocketAddress:
    """May take long for a name. `OSError`: the name is unknown."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return SocketAddress(found[0][0], found[0][4])


class NameLookup:
    """For one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[Address, tuple[SocketAddress | OSError, float]] = {}  # with when it came, by time.monotonic
        self._asked: set[Address] = set()

    def find(self, address: Address) -> SocketAddress | None:
        """None: the answer has not come yet, so try again a little later. `OSError`: the name is unknown."""
        try:
            return find(address, socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass  # a name
        with self._lock:
            answer, came = self._answers.get(address, (None, 0.0))
            if answer is None or time.monotonic() - came > KEPT_SECONDS:
                self._ask(address)
            elif isinstance(answer, OSError):
                del self._answers[address]  # the next try asks again
                raise answer
        return answer if isinstance(answer, SocketAddress) else None

    def _ask(self, address: Address) -> None:
        if address not in self._asked:
            self._asked.add(address)
            threading.Thread(target=self._look_up, args=(address,), name="shoal-names", daemon=True).start()

    def _look_up(self, address: Address) -> None:
        answer: SocketAddress | OSError
        try:
            answer = find(address)
        except OSError as error:
            answer = error
        with self._lock:
            self._asked.discard(address)
            self._answers[address] = (answer, time.monotonic())
