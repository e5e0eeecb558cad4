"""A listening socket and its strangers: takes connections in, a few at a time, and turns strangers out again.

For one thread, in any poll loop: call `accept` when the socket can be read and the door is not full, `sweep` when
something is due. Not here: how many strangers there may be (`strangers`), and what is said to them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from shoal.events import ConnectionIntercepted
from shoal.transport.connection.certificates import own_certificate
from shoal.transport.connection.endpoint import insists_on_tls
from shoal.transport.connection.strangers import ACCEPT_AT_ONCE, FULL_SECONDS, Strangers

MOST_INTERCEPTORS = 64  # hosts that are reported

Stranger = TypeVar("Stranger")


class Door(Generic[Stranger]):
    """The caller passes times, in seconds of a clock that never goes back."""

    def __init__(
        self,
        listener: socket.socket,
        take_in: Callable[[socket.socket], Stranger],
        turn_out: Callable[[Stranger], None],
    ) -> None:
        """`listener` is listening, and belongs to the door. `OSError` from `take_in`: the stranger has gone already."""
        listener.setblocking(False)
        self._listener = listener
        self._take_in = take_in
        self._turn_out = turn_out
        self._strangers: Strangers[Stranger] = Strangers()
        self._full_until: float | None = None  # when to accept again, after there was no descriptor for one more
        self._interceptors: set[str] = set()  # hosts that were reported

    def prepare(self) -> None:
        """If TLS will be needed, make the certificate before anybody waits for it. May take a moment."""
        if insists_on_tls(self._listener.family, self._listener.getsockname()[0]):
            own_certificate()

    def fileno(self) -> int:
        """-1: the door is closed."""
        return self._listener.fileno()

    def is_full(self, now: float) -> bool:
        """Whether no connection can be taken in for a moment: do not poll the socket then."""
        if self._full_until is not None and now >= self._full_until:
            self._full_until = None
        return self._full_until is not None

    def accept(self, now: float) -> None:
        """Take in some of the connections that wait."""
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the connection is gone already
            except OSError:
                self._turn_all_out(self._strangers.make_room())
                self._full_until = now + FULL_SECONDS
                return
            descriptor = connection.fileno()
            try:
                stranger = self._take_in(connection)
            except OSError:
                connection.close()
                continue
            self._turn_all_out(self._strangers.enter(stranger, descriptor, now))

    def __iter__(self) -> Iterator[Stranger]:
        """The connections that have proven nothing yet."""
        return iter(self._strangers)

    def settle(self, stranger: Stranger) -> None:
        """Forget a stranger that has proven who it is, or is gone."""
        self._strangers.settle(stranger)

    def is_news(self, interceptor: str) -> bool:
        """Whether to report a host that decrypts (`Introduction.interceptor`): each host once, and not too many."""
        is_new = interceptor not in self._interceptors and len(self._interceptors) < MOST_INTERCEPTORS
        if interceptor and is_new:
            self._interceptors.add(interceptor)
        return bool(interceptor) and is_new

    def sweep(self, now: float) -> None:
        """Turn out strangers whose time is up."""
        self._turn_all_out(self._strangers.overdue(now))

    def next_due(self, now: float) -> float | None:
        """When `sweep` or `accept` has something to do even if the socket stays quiet. None: never."""
        due = [each for each in (self._strangers.next_due, self._full_until) if each is not None]
        return max(now, min(due)) if due else None

    def close(self) -> None:
        """Take in no more connections; strangers stay. Safe to call twice."""
        self._listener.close()

    def _turn_all_out(self, strangers: list[Stranger]) -> None:
        for stranger in strangers:
            self._turn_out(stranger)


def interception(listener: str, source: str) -> ConnectionIntercepted:
    """The event of a listener that refused a connection because somebody at `source` decrypts it."""
    reason = (
        f"{listener} refused a connection from {source}: whoever made it holds the token, but was shown a certificate "
        f"that is not {listener}'s. Somebody in between decrypts connections; find out who has the address {source}"
    )
    return ConnectionIntercepted(source=source, listener=listener, reason=reason)
