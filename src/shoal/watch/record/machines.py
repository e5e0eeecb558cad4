"""The machines of a job, from its events: what runs where and why, what the engine said, the links between hosts. Pure.

Not here: how much of the machines workers use (`machine_use`), and how all this reads (`machine_words`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shoal import events

MOST_MACHINES = 10_000  # workers whose machine is kept
MOST_PLACEMENTS = 500  # the newest are kept
MOST_SAID = 200  # lines of the engine; the newest are kept


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
        self.placements: deque[tuple[float, events.ProcessPlaced]] = deque(maxlen=MOST_PLACEMENTS)  # with their times
        self.placed = 0  # processes, with those that are no longer kept
        self.said: deque[tuple[float, events.EngineSaid]] = deque(maxlen=MOST_SAID)
        self.said_before = 0  # lines of the engine that are no longer kept
        self.links: events.LinksMeasured | None = None  # the newest
        self._node_of: dict[int, str] = {}  # by worker

    def add(self, event: events.Event, time: float) -> None:
        match event:
            case events.WorkerEquipped():
                if event.worker in self.workers or len(self.workers) < MOST_MACHINES:
                    self.workers[event.worker] = event
            case events.ProcessPlaced():
                self._place(event, time)
            case events.EngineSaid():
                self.said_before += len(self.said) == MOST_SAID
                self.said.append((time, event))
            case events.LinksMeasured():
                self.links = event
            case _:
                pass

    def _place(self, event: events.ProcessPlaced, time: float) -> None:
        self.placed += 1
        self.placements.append((time, event))
        if event.node not in self.nodes and len(self.nodes) >= MOST_MACHINES:
            return
        node = self.nodes.setdefault(event.node, NodeUse(event.host))
        for number, numbers in ((event.worker, node.workers), (event.server, node.servers)):
            if number is not None and len(numbers) < MOST_MACHINES:
                numbers.append(number)
        if event.worker is not None and len(self._node_of) < MOST_MACHINES:
            self._node_of[event.worker] = event.node

    def place_of(self, worker: int, host: str) -> str:
        """The name under which people know a worker's machine: the engine's, otherwise its own."""
        equipped = self.workers.get(worker)
        return self._node_of.get(worker) or (equipped.node if equipped is not None else "") or host

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
