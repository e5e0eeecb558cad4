"""Operations that take too long, and ranks that are stopped: one thread per process watches all its groups.

The thread ends an operation whose time is over, and its group. If an operation hangs and some ranks are on other
machines, the thread asks those whether they are still at work (`vigil`). It sleeps until the earliest moment at which
any operation could be due: for ranks of one machine it wakes about once per limit. It lives as long as there is a
group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from shoal.collectives.torch_backend.vigil import INTERVAL, Vigil

LONGEST = 86_400.0  # seconds of sleep; Python's locks take no more than some years
GRACE = 0.02  # seconds: a caller that waits with the same limit may report it first


class Timed(Protocol):
    """A group, as far as deadlines need it."""

    @property
    def stalled(self) -> float:
        """Seconds since the running operation began; 0 between operations."""


@dataclass(eq=False)
class Deadline:
    """How long one group's operations may take."""

    group: Timed
    limit: float  # seconds; call `Deadlines.look` after changing it
    run_out: Callable[[str, float], None]  # ends a group whose operation took too long: operation or "", limit
    lose: Callable[[int, float], None]  # ends a group with a silent rank: the rank, and how long the operation hung
    vigil: Vigil | None = None  # if some ranks are on other machines
    receiving: dict[int, float] = field(default_factory=dict)  # by thread: since when it waits for a send or receive

    @property
    def hung(self) -> float:
        """For how many seconds an operation that may depend on remote ranks has hung."""
        since = min(self.receiving.copy().values(), default=None)
        return max(self.group.stalled, 0.0 if since is None else time.monotonic() - since)


class Deadlines:
    def __init__(self) -> None:
        self._change = threading.Condition()  # guards the attributes below
        self._watched: list[Deadline] = []
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline) -> None:
        with self._change:
            self._watched.append(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="shoal-deadlines", daemon=True)
                self._thread.start()
            self._change.notify()

    def look(self) -> None:
        """A limit has changed."""
        with self._change:
            self._change.notify()

    def remove(self, deadline: Deadline) -> None:
        """Removing the last one ends the thread. Safe to call twice."""
        with self._change:
            if deadline in self._watched:
                self._watched.remove(deadline)
            thread = None if self._watched else self._thread
            if thread is not None:
                self._thread = None
            self._change.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def forget(self) -> None:
        """In a forked child: thread and groups belong to the parent."""
        self._change = threading.Condition()
        self._watched.clear()
        self._thread = None

    def _serve(self) -> None:
        while (watched := self._sleep()) is not None:
            for deadline in watched:
                if _has_ended(deadline):
                    self._drop(deadline)

    def _sleep(self) -> list[Deadline] | None:
        """Sleep until an operation could be due, then return what to look at. None: this thread is no longer needed."""
        with self._change:
            if self._thread is threading.current_thread() and self._watched:
                self._change.wait(min(map(_time_left, self._watched)))
            return list(self._watched) if self._thread is threading.current_thread() else None

    def _drop(self, deadline: Deadline) -> None:
        """End each group only once. The thread stays for the others, or until the group is closed."""
        with self._change:
            if deadline in self._watched:
                deadline.limit, deadline.vigil = LONGEST, None


def _time_left(deadline: Deadline) -> float:
    """Seconds until an operation could be due. An operation that begins later is due later."""
    if deadline.vigil is not None:
        return INTERVAL
    return max(0.0, min(LONGEST, deadline.limit + GRACE - deadline.group.stalled))


def _has_ended(deadline: Deadline) -> bool:
    """Whether the group was ended now."""
    if deadline.group.stalled > deadline.limit:
        deadline.run_out("", deadline.limit)
        return True
    hung = deadline.hung
    rank = None if deadline.vigil is None else deadline.vigil.lost(hung)
    if rank is not None:
        deadline.lose(rank, hung)
    return rank is not None


deadlines = Deadlines()
