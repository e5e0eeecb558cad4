"""Translating times of workers' own clocks into the coordinator's time. Pure, except for `own_clock` and `RecordClock`.

A report says when it was sent, by its sender's clock, and arrives later. The smallest difference between arrival and
sending is the best estimate of how far the two clocks are apart. With it, a report that was delayed by a stopped
process or a broken connection gets the time at which it was sent. Clocks drift, so old differences are forgotten.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

CLOCK_STEP = 1e-5  # seconds between two events, at least
WINDOW = 300.0  # seconds by a worker's clock; the smallest difference of the last two windows counts


# Seconds; never goes back, even if the time of day is changed, and goes on while the machine is suspended.
own_clock: Callable[[], float] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class RecordClock:
    """Times of events, in seconds since 1970, by this process's clock."""

    def __init__(self, last_time: float = 0.0) -> None:
        """`last_time`: of the last record on disk; no event is earlier."""
        self._base = max(time.time(), last_time) - own_clock()
        self._last = 0.0  # time of the last event

    def next(self) -> float:
        """Times never go back, even if the time of day is changed, and no two events have the same time."""
        self._last = max(self._base + own_clock(), self._last + CLOCK_STEP)
        return self._last


class _Difference:
    """The difference between the coordinator's clock and one worker's clock."""

    __slots__ = ("before", "began", "now")

    def __init__(self, clock: float) -> None:
        self.began = clock  # of the present window
        self.before = self.now = math.inf  # smallest difference in the last window, and in the present one

    def hear(self, clock: float, arrived: float) -> float:
        if not 0 <= clock - self.began < WINDOW:
            self.before = self.now if 0 <= clock - self.began < 2 * WINDOW else math.inf
            self.began, self.now = clock, math.inf
        self.now = min(self.now, arrived - clock)
        return min(self.before, self.now)


class WorkerClocks:
    def __init__(self) -> None:
        self._differences: dict[int, _Difference] = {}  # by worker

    def hear(self, worker: int, clock: float, arrived: float) -> float:
        """A report that the worker sent at `clock`, by its own clock, has arrived at `arrived`.

        Returns by how much the coordinator's clock is ahead of the worker's.
        """
        known = self._differences.get(worker)
        if known is None:
            known = self._differences[worker] = _Difference(clock)
        return known.hear(clock, arrived)
