"""Faults of links, set on purpose: which links are cut or slow, and until when. Pure but for an injected clock.

They imitate a bad network on one machine, where real packet filters would need privileges. A link is named by the
worker at its other end. Not here: the code that obeys the faults (`tcp`, `tcp_mesh`), which asks nothing while no fault
is set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST_SECONDS = 0.05  # a slow link takes at most the bytes of this many seconds at once


@dataclass
class _Slowness:
    until: float
    rate: float  # bytes per second
    credit: float  # bytes that may be sent now
    since: float  # when the credit was counted


class LinkFaults:
    """From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_set = False  # True: there may be faults; False: there are certainly none
        self._clock = clock
        self._lock = threading.Lock()
        self._cuts: dict[int | None, float] = {}  # until when, by worker; None: the links to everybody
        self._slow: dict[int | None, _Slowness] = {}

    def cut(self, worker: int | None, seconds: float) -> None:
        """No bytes go to or come from a worker for `seconds`. None: all workers."""
        with self._lock:
            self._cuts[worker] = max(self._cuts.get(worker, 0.0), self._clock() + seconds)
            self.is_set = True

    def slow(self, worker: int | None, seconds: float, rate: float) -> None:
        """At most `rate` bytes per second go to a worker. None: to all workers together. The latest call counts."""
        with self._lock:
            now = self._clock()
            self._slow[worker] = _Slowness(until=now + seconds, rate=max(1.0, rate), credit=0.0, since=now)
            self.is_set = True

    def is_cut(self, worker: int) -> bool:
        if not self.is_set:
            return False
        with self._lock:
            self._forget_what_is_over()
            return worker in self._cuts or None in self._cuts

    def allowance(self, worker: int, wanted: int) -> int:
        """How many of the `wanted` bytes may be sent now. They count as sent."""
        if not self.is_set:
            return wanted
        with self._lock:
            self._forget_what_is_over()
            limits = [self._slow[key] for key in (worker, None) if key in self._slow]
            for limit in limits:
                now = self._clock()
                most = max(1.0, limit.rate * BURST_SECONDS)
                limit.credit = min(most, limit.credit + limit.rate * (now - limit.since))
                limit.since = now
            allowed = min([wanted, *(int(limit.credit) for limit in limits)])
            for limit in limits:
                limit.credit -= allowed
            return allowed

    def _forget_what_is_over(self) -> None:
        now = self._clock()
        self._cuts = {worker: until for worker, until in self._cuts.items() if until > now}
        self._slow = {worker: slowness for worker, slowness in self._slow.items() if slowness.until > now}
        self.is_set = bool(self._cuts or self._slow)
