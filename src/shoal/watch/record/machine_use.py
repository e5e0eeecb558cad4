"""What workers run on, and how much processor and memory they use over time, from their events. Pure.

A worker's report has totals since its process began to measure: two of them give the cores that it kept busy in
between. Processes that a worker starts, such as those of a data loader, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal import events
from shoal.values import ProcessUse
from shoal.watch.record.series import Series

MOST_WORKERS = 64  # with curves of their own; the sum has them all
MOST_POINTS = 500  # of a curve
GIGABYTE = 1e9
MOST_MACHINES = 10_000  # workers whose machine is kept


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


@dataclass
class NodeUse:
    """What ran on a node, by the engine's placements: numbers in the order in which they came."""

    host: str
    workers: list[int] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)


class Machines:
    """What each worker last said that it runs on, and where an engine over several machines has put processes."""

    def __init__(self) -> None:
        self.workers: dict[int, events.WorkerEquipped] = {}
        self.nodes: dict[str, NodeUse] = {}  # empty: the job had the launcher's machine alone

    def place(self, event: events.ProcessPlaced) -> None:
        if event.node not in self.nodes and len(self.nodes) >= MOST_MACHINES:
            return
        node = self.nodes.setdefault(event.node, NodeUse(event.host))
        for number, numbers in ((event.worker, node.workers), (event.server, node.servers)):
            if number is not None and len(numbers) < MOST_MACHINES:
                numbers.append(number)

    def add(self, event: events.WorkerEquipped) -> None:
        if event.worker in self.workers or len(self.workers) < MOST_MACHINES:
            self.workers[event.worker] = event

    def versions(self) -> dict[str, list[str]]:
        """By name of a program, the versions that workers have, each once."""
        return {
            name: sorted({getattr(each, field) for each in self.workers.values()})
            for name, field in (("Python", "python"), ("torch", "torch"), ("Shoal", "shoal"), ("system", "system"))
        }

    def by_kind(self) -> list[tuple[events.WorkerEquipped, list[int]]]:
        """Workers on the same node and host with the same equipment, as one entry with their numbers."""
        found: dict[tuple[object, ...], tuple[events.WorkerEquipped, list[int]]] = {}
        for worker, told in sorted(self.workers.items()):
            key = (told.node, told.host, told.processor, told.cores, told.memory, told.gpu)
            found.setdefault(key, (told, []))[1].append(worker)
        return list(found.values())
