"""Which node takes a process. Pure: nodes come and go, processes start and end, decisions come out with their reasons.

A worker takes a slot of its node. Processes without a slot, such as servers and spares, run beside them. A process goes
to the node with the smallest part of its slots in use, so that work is spread by what nodes can take. Those that are
to be kept apart go first to nodes with the fewest of them. Whoever finds no place waits, in order. Not here: what nodes
are (`provider`), starting anything (`node_engine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Demand:
    """A process that needs a place."""

    name: str
    takes_slot: bool = True
    apart: bool = False  # from others that are to be kept apart


@dataclass(frozen=True)
class Place:
    """The node that takes a process."""

    name: str
    node: str
    slot: int  # of a process that takes one: 0..slots-1, the lowest that is free; otherwise 0
    reason: str


@dataclass(frozen=True)
class Waits:
    """No node can take the process now."""

    name: str
    reason: str


@dataclass
class _Node:
    name: str
    slots: int
    order: tuple[int, int]  # as given, then of arrival
    taken: dict[int, str] = field(default_factory=dict)  # slots in use, with the processes that have them
    others: set[str] = field(default_factory=set)  # processes without a slot
    apart: set[str] = field(default_factory=set)  # those that are kept apart

    @property
    def free(self) -> int:
        return self.slots - len(self.taken)

    @property
    def load(self) -> float:
        return len(self.taken) / self.slots if self.slots else 1.0

    @property
    def processes(self) -> list[str]:
        return [*self.taken.values(), *self.others]


class NodePlacement:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._arrivals = 0
        self._where: dict[str, str] = {}  # by process that has a place: its node
        self._waiting: dict[str, Demand] = {}  # in order

    @property
    def nodes(self) -> Mapping[str, int]:
        """Slots by node."""
        return {node.name: node.slots for node in self._nodes.values()}

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(self._waiting)

    def node_of(self, name: str) -> str | None:
        return self._where.get(name)

    # Nodes

    def add_node(self, name: str, slots: int, *, order: int = 0) -> list[Place]:
        """A node has come. Returns the places of processes that have waited for one.

        Of nodes that are equally good, the lowest `order` comes first, then the one that came first.
        """
        assert name not in self._nodes, f"node {name} is here already"
        self._nodes[name] = _Node(name, slots, (order, self._arrivals))
        self._arrivals += 1
        return self._place_waiting()

    def remove_node(self, name: str) -> list[str]:
        """A node is gone. Returns its processes, which are gone too."""
        node = self._nodes.pop(name, None)
        lost = [] if node is None else node.processes
        for process in lost:
            del self._where[process]
        return lost

    # Processes

    def start(self, demand: Demand) -> Place | Waits:
        assert demand.name not in {*self._where, *self._waiting}, f"{demand.name} has a place, or waits for one"
        place = self._place(demand)
        if isinstance(place, Waits):
            self._waiting[demand.name] = demand
        return place

    def end(self, name: str) -> list[Place]:
        """A process has ended, or is no longer wanted. Returns the places of processes that have waited for one."""
        self._waiting.pop(name, None)
        node = self._nodes.get(self._where.pop(name, ""))
        if node is None:
            return []
        node.taken = {slot: process for slot, process in node.taken.items() if process != name}
        node.others.discard(name)
        node.apart.discard(name)
        return self._place_waiting()

    def _place_waiting(self) -> list[Place]:
        found = []
        for demand in tuple(self._waiting.values()):
            place = self._place(demand)
            if isinstance(place, Place):
                del self._waiting[demand.name]
                found.append(place)
        return found

    def _place(self, demand: Demand) -> Place | Waits:
        fit = [node for node in self._nodes.values() if node.free > 0 or not demand.takes_slot]
        if not fit:
            return Waits(demand.name, self._no_room())
        best = min(fit, key=lambda node: _rank(node, demand))
        reason = _reason(best, demand, others=len(self._nodes) - 1)
        slot = 0
        if demand.takes_slot:
            slot = next(number for number in range(best.slots) if number not in best.taken)
            best.taken[slot] = demand.name
        else:
            best.others.add(demand.name)
        if demand.apart:
            best.apart.add(demand.name)
        self._where[demand.name] = best.name
        return Place(demand.name, best.name, slot, reason)

    def _no_room(self) -> str:
        if not self._nodes:
            return "no node is there"
        slots = sum(node.slots for node in self._nodes.values())
        nodes = "the only node" if len(self._nodes) == 1 else f"{len(self._nodes)} nodes"
        return f"all {slots} slots of {nodes} are in use"


def _rank(node: _Node, demand: Demand) -> tuple[float, ...]:
    """The lowest one takes the process."""
    kept_apart = len(node.apart) if demand.apart else 0
    return (kept_apart, node.load, len(node.others), -node.free, *node.order)


def _reason(node: _Node, demand: Demand, *, others: int) -> str:
    if not others:
        return f"{node.name} is the only node"
    if demand.apart:
        there = "no server" if not node.apart else f"only {len(node.apart)} of the servers"
        return f"{node.name} has {there} yet"
    use = f"{len(node.taken)} of {node.slots} slots of {node.name} were in use"
    return f"{use}, no larger part than on {'the other node' if others == 1 else f'any of the {others} other nodes'}"
