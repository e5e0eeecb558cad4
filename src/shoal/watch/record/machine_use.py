"""How much processor and memory workers use over time, from their events. Pure.

A worker's report has totals since its process began to measure: two of them give the cores that it kept busy in
between. Processes that a worker starts, such as those of a data loader, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal import events
from shoal.values import ProcessUse
from shoal.watch.record.series import Series

MOST_WORKERS = 64  # with curves of their own; the sum has them all
MOST_POINTS = 500  # of a curve
GIGABYTE = 1e9


class UseOverTime:
    """Curves over steps: cores that were busy, and gigabytes that were resident."""

    def __init__(self) -> None:
        self.cores: dict[int, Series] = {}  # by worker
        self.memory: dict[int, Series] = {}
        self.all_cores = Series(MOST_POINTS)  # of all members together
        self.all_memory = Series(MOST_POINTS)
        self._members: frozenset[int] = frozenset()
        self._last: dict[int, ProcessUse] = {}  # by worker that is in the job
        self._busy: dict[int, float] = {}  # by worker: its cores in its last two reports

    def regroup(self, workers: Iterable[int]) -> None:
        """Only these are in the job now; those who have left use nothing any more."""
        self._members = frozenset(workers)
        for known in (self._last, self._busy):
            for worker in set(known) - self._members:
                del known[worker]

    def add(self, event: events.StepsApplied, time: float) -> None:
        use, before = event.use, self._last.get(event.worker)
        if use is None or (before is not None and use.age == before.age):
            return
        self._last[event.worker] = use
        self._put(self.memory, event, time, use.memory / GIGABYTE)
        if before is not None and use.age > before.age and use.processor >= before.processor:
            seconds = use.age - before.age
            self._busy[event.worker] = (use.processor - before.processor) / seconds
            self._put(self.cores, event, time, self._busy[event.worker], weight=seconds)
        if self._members <= set(self._last):
            self.all_memory.add(event.step, time, sum(each.memory for each in self._last.values()) / GIGABYTE)
        if self._busy and self._members <= set(self._busy):
            self.all_cores.add(event.step, time, sum(self._busy.values()))

    def rewind(self, step: int) -> None:
        """Forget everything from this step on: these steps are done again."""
        for series in (self.all_cores, self.all_memory, *self.cores.values(), *self.memory.values()):
            series.rewind(step)

    def _put(
        self, curves: dict[int, Series], event: events.StepsApplied, time: float, value: float, *, weight: float = 1.0
    ) -> None:
        if event.worker not in curves:
            if len(curves) >= MOST_WORKERS:
                return
            curves[event.worker] = Series(MOST_POINTS)
        curves[event.worker].add(event.step, time, value, weight)
