"""Connections that have proven nothing yet: how many of them a process holds, and for how long.

Whoever can reach a port can open connections to it, so they are bounded where they are accepted: by number, by time,
and by the descriptors that this process has left for its members and its files. The one that has been there longest
goes first: whoever holds the token proves so within a moment. No socket and no clock: the caller accepts, tells the
time and closes whom it is given. Not here: the proof (`connection.handshake`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MOST = 256  # strangers at a time
FEWEST = 8  # that may be there however few descriptors are left: a member that comes is one of them at first
SECONDS = 10.0  # for the proof and the first message together
RESERVE = 64  # descriptors that strangers leave for members and files; a quarter of the limit where that is less
ACCEPT_AT_ONCE = 16  # connections taken in before those that are there are looked at again
FULL_SECONDS = 0.05  # before the next try to accept after there was no descriptor for one more

Stranger = TypeVar("Stranger")


class Strangers(Generic[Stranger]):
    """In order of arrival. Whoever is handed out to be closed is forgotten."""

    def __init__(self, limit: Callable[[], int] | None = None) -> None:
        """`limit` says how many descriptors this process may have."""
        self._limit = limit or descriptor_limit
        self._came: dict[Stranger, float] = {}  # when, by the caller's clock; oldest first
        self._others = 0  # descriptors that are no strangers', at least
        self._others_at = 0.0  # when that was found; it is forgotten after `SECONDS`

    def __len__(self) -> int:
        return len(self._came)

    def __iter__(self) -> Iterator[Stranger]:
        return iter(tuple(self._came))

    def enter(self, stranger: Stranger, descriptor: int, now: float) -> list[Stranger]:
        """Take in a connection with this descriptor. Returns the connections that have to be closed for it."""
        self._came[stranger] = now
        # The kernel gives out the lowest number that is free, so all below this one are in use.
        others = descriptor + 1 - len(self._came)
        if others >= self._others or now - self._others_at >= SECONDS:
            self._others, self._others_at = others, now
        limit = self._limit()
        room = limit - min(RESERVE, limit // 4) - self._others
        too_many = len(self._came) - min(MOST, max(FEWEST, room))
        return [self._oldest() for _ in range(too_many)]

    def settle(self, stranger: Stranger) -> None:
        """It has proven who it is, or is gone."""
        self._came.pop(stranger, None)

    def make_room(self) -> list[Stranger]:
        """Whom to close because there was no descriptor for one more: the oldest, if there is one."""
        return [self._oldest()] if self._came else []

    def overdue(self, now: float) -> list[Stranger]:
        """Whose time is up."""
        gone = []
        while self._came and now - next(iter(self._came.values())) >= SECONDS:
            gone.append(self._oldest())
        return gone

    @property
    def next_due(self) -> float | None:
        """When `overdue` has something to say at the earliest."""
        return next((came + SECONDS for came in self._came.values()), None)

    def _oldest(self) -> Stranger:
        stranger = next(iter(self._came))
        del self._came[stranger]
        return stranger


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """To as many as this user may have. For processes of ours that hold a connection to each of many others."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
