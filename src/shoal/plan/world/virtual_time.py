"""Virtual time: one queue of what happens when, one seeded random generator, and processes that stop, freeze and die.

Everything in a simulation happens in one thread, in the order of the queue; the same seed gives the same run. Not here:
what processes say to each other (`network`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


class VirtualTime:
    """Seconds since the beginning of the simulation."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0  # actions that are due at the same time happen in the order of asking

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def at(self, when: float, action: Action) -> None:
        """For actions that must be due at exactly the same time, which sums of floats do not guarantee."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action))

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        """Let things happen until that time, or until `is_over()`."""
        while self._queue and self._queue[0][0] <= until and not is_over():
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.random.random()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class Process:
    """Runs actions while it lives; while it is frozen (SIGSTOP) they wait, and happen in order when it wakes."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.is_alive = True
        self.is_frozen = False
        self.woke = -1.0  # when it last woke
        self._waiting: list[Action] = []

    def do(self, action: Action) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._waiting.append(action)
        else:
            action()

    def after(self, seconds: float, action: Action) -> None:
        self.time.after(seconds, lambda: self.do(action))

    def freeze(self, seconds: float) -> None:
        if self.is_alive and not self.is_frozen:
            self.is_frozen = True
            self.time.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.is_frozen = False
        self.woke = self.time.now
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.do(action)

    def die(self) -> None:
        self.is_alive = False
        self._waiting.clear()
