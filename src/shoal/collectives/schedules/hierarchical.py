"""Hierarchical schedules: inside each host a tree to its first rank, between hosts one flow per host. Pure.

All-reduce sums inside every host, runs another schedule among the first ranks of the hosts, and copies inside every
host. `hosts` are the ranks of each host, each rank once; the first rank of a host represents it. For hosts whose ranks
do not share memory: where they do, `two_level_exchanger` works inside hosts without sending anything.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.collectives.schedules import tree
from shoal.collectives.schedules.schedule import Program, joined, placed, refined
from shoal.collectives.schedules.tree import TreePlace
from shoal.links.matrix import Hosts


def hierarchical_all_reduce(hosts: Hosts, rank: int, *, between: Program, pieces: int) -> Program:
    """`between`: the program of this rank's host among all hosts, with numbers of hosts as ranks. `pieces`: how many
    pieces of each of its blocks follow each other through the tree inside a host."""
    outside = refined(between, pieces)
    inside = _inside(hosts, rank)
    levels = [tree.up(inside, outside.segments), tree.down(inside, outside.segments)]
    if inside.parent is None:
        levels.insert(1, placed(outside, [host[0] for host in hosts]))
    return joined(*levels)


@lru_cache(maxsize=256)
def hierarchical_broadcast(hosts: Hosts, rank: int, *, source: int, segments: int) -> Program:
    """The source represents its host. Other hosts get the data once, in a tree of hosts."""
    led = tuple((source, *(each for each in host if each != source)) if source in host else host for host in hosts)
    number, inside = host_of(led, rank), _inside(led, rank)
    if inside.parent is not None:
        return tree.down(inside, segments)
    outside = tree.place_of(len(led), number, root=host_of(led, source))
    place = TreePlace(
        parent=None if outside.parent is None else led[outside.parent][0],
        children=(*(led[child][0] for child in outside.children), *inside.children),
        depth=outside.depth,
    )
    return tree.down(place, segments)


def host_of(hosts: Hosts, rank: int) -> int:
    return next(number for number, host in enumerate(hosts) if rank in host)


def _inside(hosts: Hosts, rank: int) -> TreePlace:
    """Where a rank sits in the tree of its own host."""
    host = hosts[host_of(hosts, rank)]
    place = tree.place_of(len(host), host.index(rank), root=0)
    return TreePlace(
        parent=None if place.parent is None else host[place.parent],
        children=tuple(host[child] for child in place.children),
        depth=place.depth,
    )
