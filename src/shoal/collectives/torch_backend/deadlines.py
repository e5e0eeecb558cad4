"""Operations that take too long: one thread per process ends them, for all its groups.

An operation's own wait may notice that its time is over, and who is late; where it does not, the group is aborted here.
The thread sleeps until the earliest moment at which any operation could be due, so it wakes about once per limit and
costs nothing on the way. It lives as long as there is a group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LONGEST = 86_400.0  # seconds of sleep; Python's locks take no more than some years
GRACE = 0.25  # seconds: who notices by itself can also say who is late


class Timed(Protocol):
    """A group, as seen from here."""

    @property
    def stalled(self) -> float:
        """Seconds since the operation that is being run began; 0 between operations."""


@dataclass(eq=False)
class Deadline:
    """How long one group's operations may take."""

    group: Timed
    limit: float  # seconds; may be changed, then `Deadlines.look` again
    run_out: Callable[[str, float], None]  # ends a group whose operation took longer: its name or nothing, the limit


class Deadlines:
    def __init__(self) -> None:
        self._change = threading.Condition()  # guards what follows
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
        """The last one ends the thread. Safe to call twice."""
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
        """In a forked child: thread and groups are the parent's."""
        self._change = threading.Condition()
        self._watched.clear()
        self._thread = None

    def _serve(self) -> None:
        while (due := self._next_due()) is not None:
            for deadline in due:
                deadline.run_out("", deadline.limit)

    def _next_due(self) -> list[Deadline] | None:
        """Wait until time is over for somebody. None: there is nobody left."""
        with self._change:
            while self._thread is threading.current_thread():
                left = {id(each): each.limit + GRACE - each.group.stalled for each in self._watched}
                due = [each for each in self._watched if left[id(each)] <= 0]
                if due:
                    self._watched = [each for each in self._watched if each not in due]
                    return due
                # An operation that begins later is due later than this.
                self._change.wait(min(LONGEST, *left.values()))
        return None


deadlines = Deadlines()
