"""When something happened that workers tell by their own clocks, in the coordinator's time. Pure but for `own_clock`.

A report says when it was sent, by its sender's clock, and arrives later. The least difference between arrival and
sending is the best guess of how far the two clocks are apart: what is late because a process stood still or a
connection was down is placed where it happened. Clocks drift, so old differences are forgotten.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

WINDOW = 300.0  # seconds by a worker's clock after which a new least difference is looked for; two windows count


# Seconds, never going back, whatever is done to the time of day; goes on while the machine is suspended.
own_clock: Callable[[], float] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class _Difference:
    """Between the coordinator's clock and that of one worker."""

    __slots__ = ("before", "began", "now")

    def __init__(self, clock: float) -> None:
        self.began = clock  # of the present window
        self.before = self.now = math.inf  # least difference in the last window, and in the present one

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
        """A report that was sent at `clock`, by the worker's clock, arrived at this time.

        Returns by how much the coordinator's clock is ahead of the worker's.
        """
        known = self._differences.get(worker)
        if known is None:
            known = self._differences[worker] = _Difference(clock)
        return known.hear(clock, arrived)
