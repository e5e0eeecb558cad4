"""Which program an operation runs: the schedule's name and the tensor's size decide, the same on every rank. Pure.

`auto` follows the plan that was made from the measured links, or a fixed table where there is no plan. The plan also
gives the order of ranks around a ring, and which ranks share a host.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.collectives import texts
from shoal.collectives.schedules import ring, tree
from shoal.collectives.schedules.double_tree import double_tree_all_reduce
from shoal.collectives.schedules.halving import doubling_all_gather, halving_all_reduce, halving_reduce_scatter
from shoal.collectives.schedules.hierarchical import hierarchical_all_reduce, hierarchical_broadcast, host_of
from shoal.collectives.schedules.schedule import Action, Program, Round, Transfer
from shoal.errors import UsageError
from shoal.links.cost import pieces_of
from shoal.links.matrix import Hosts
from shoal.links.plan import FIXED, LinkPlan
from shoal.settings.all_reduce_settings import SCHEDULES


class Chooser:
    """One rank's programs under one schedule name."""

    def __init__(self, schedule: str, size: int, rank: int, plan: LinkPlan | None = None) -> None:
        """Without a plan nothing is known of the links, and `auto` follows a fixed table."""
        if schedule not in SCHEDULES:
            raise UsageError(texts.no_schedule(schedule, SCHEDULES))
        self._schedule = schedule
        self._size = size
        self._rank = rank
        self._plan = plan or FIXED

    def all_reduce(self, size: int) -> Program:
        """`size` is the tensor's, in bytes."""
        schedule = self._plan.all_reduce.at(size) if self._schedule == "auto" else self._schedule
        pieces = pieces_of(size)
        if schedule != "hierarchical":
            return _flat_all_reduce(schedule, pieces, self._size, self._rank, self._plan.order)
        # Where hosts are not known, every rank counts as a host, and only the schedule between hosts remains.
        hosts = self._plan.hosts or tuple((rank,) for rank in range(self._size))
        between = self._plan.between or FIXED
        return _hierarchical_all_reduce(hosts, self._rank, between.all_reduce.at(size), between.order, pieces)

    def broadcast(self, size: int, source: int) -> Program:
        schedule = self._plan.broadcast.at(size) if self._schedule == "auto" else self._schedule
        segments = pieces_of(size) if self._size > 2 else 1  # with two ranks, none passes data on
        if schedule == "ring":
            order = self._plan.order
            return ring.ring_broadcast(self._size, self._rank, source=source, segments=segments, order=order)
        if schedule == "hierarchical" and self._plan.hosts:
            return hierarchical_broadcast(self._plan.hosts, self._rank, source=source, segments=segments)
        return tree.tree_broadcast(self._size, self._rank, source=source, segments=segments)

    def reduce_scatter(self) -> Program:
        if self._schedule == "halving-doubling":
            return halving_reduce_scatter(self._size, self._rank)
        return ring.ring_reduce_scatter(self._size, self._rank, order=self._plan.order)

    def all_gather(self) -> Program:
        if self._schedule == "halving-doubling":
            return doubling_all_gather(self._size, self._rank)
        return ring.ring_all_gather(self._size, self._rank, order=self._plan.order)

    def all_to_all(self) -> Program:
        """Segments 0..size-1 go to each rank, the next `size` segments come from each rank."""
        others = [(self._rank + step) % self._size for step in range(1, self._size)]
        sends = tuple(Transfer(Action.SEND, peer, peer, 0) for peer in others)
        receives = tuple(Transfer(Action.COPY, self._size + peer, peer, 0) for peer in reversed(others))
        return Program(2 * self._size, (Round(sends=sends, receives=receives),))

    def send(self, target: int) -> Program:
        return Program(1, (Round(sends=(Transfer(Action.SEND, 0, target, 0),)),))

    def receive(self, source: int) -> Program:
        return Program(1, (Round(receives=(Transfer(Action.COPY, 0, source, 0),)),))


def _flat_all_reduce(schedule: str, pieces: int, size: int, rank: int, order: tuple[int, ...]) -> Program:
    """For schedules that ignore hosts. `pieces`: how many pieces of a tensor follow each other through a tree."""
    if schedule == "ring":
        return ring.ring_all_reduce(size, rank, order=order)
    if schedule == "halving-doubling":
        return halving_all_reduce(size, rank)
    if schedule == "double-tree":
        return double_tree_all_reduce(size, rank, segments=-(-pieces // 2))
    if schedule == "chain":
        return tree.chain_all_reduce(size, rank, segments=pieces)
    assert schedule == "tree", schedule
    return tree.tree_all_reduce(size, rank, segments=pieces)


@lru_cache(maxsize=256)
def _hierarchical_all_reduce(hosts: Hosts, rank: int, schedule: str, order: tuple[int, ...], pieces: int) -> Program:
    between = _flat_all_reduce(schedule, pieces, len(hosts), host_of(hosts, rank), order)
    return hierarchical_all_reduce(hosts, rank, between=between, pieces=-(-pieces // between.segments))
