"""Connections that have proven nothing yet: how many of them a process holds, and for how long.

Anybody who can reach a port can open connections to it, so they are bounded where they are accepted: by number, by
time, and by the descriptors that this process has left for its members and its files. The oldest stranger is closed
first, since a stranger that holds the token proves it within a moment. No socket and no clock here: the caller accepts,
tells the time, and closes the connections that are handed out. Not here: the proof (`connection.handshake`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MOST = 256  # strangers at a time
FEWEST = 8  # that are allowed however few descriptors are left, since a new member is a stranger at first
SECONDS = 10.0  # for the proof and the first message together
RESERVE = 64  # descriptors that strangers leave for members and files; a quarter of the limit if that is less
ACCEPT_AT_ONCE = 16  # connections accepted before existing ones are served again
FULL_SECONDS = 0.05  # between a failure to accept for want of a descriptor and the next try

Stranger = TypeVar("Stranger")


class Strangers(Generic[Stranger]):
    """In order of arrival. A stranger that is handed out to be closed is forgotten."""

    def __init__(self, limit: Callable[[], int] | None = None) -> None:
        """`limit` says how many descriptors this process may have."""
        self._limit = limit or descriptor_limit
        self._came: dict[Stranger, float] = {}  # time of arrival, by the caller's clock; oldest first
        self._others = 0  # lower bound of the descriptors in use that are not strangers'
        self._others_at = 0.0  # when that bound was found; it is forgotten after `SECONDS`

    def __len__(self) -> int:
        return len(self._came)

    def __iter__(self) -> Iterator[Stranger]:
        return iter(tuple(self._came))

    def enter(self, stranger: Stranger, descriptor: int, now: float) -> list[Stranger]:
        """Take in a connection with this descriptor. Returns the connections that have to be closed for it."""
        self._came[stranger] = now
        # The kernel gives out the lowest free number, so all below this one are in use.
        others = descriptor + 1 - len(self._came)
        if others >= self._others or now - self._others_at >= SECONDS:
            self._others, self._others_at = others, now
        limit = self._limit()
        room = limit - min(RESERVE, limit // 4) - self._others
        too_many = len(self._came) - min(MOST, max(FEWEST, room))
        return [self._oldest() for _ in range(too_many)]

    def settle(self, stranger: Stranger) -> None:
        """Forget a stranger that has proven who it is, or is gone."""
        self._came.pop(stranger, None)

    def make_room(self) -> list[Stranger]:
        """The stranger to close because there was no descriptor for one more: the oldest, if there is one."""
        return [self._oldest()] if self._came else []

    def overdue(self, now: float) -> list[Stranger]:
        """The strangers whose time is up."""
        gone = []
        while self._came and now - next(iter(self._came.values())) >= SECONDS:
            gone.append(self._oldest())
        return gone

    @property
    def next_due(self) -> float | None:
        """When the next stranger's time is up."""
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
    """Raise it to the hard limit, for processes of ours that hold connections to many others."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
