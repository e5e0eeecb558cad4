"""Double binary tree: two trees, each for one half of the tensor. No rank passes data on in both.

A rank that has children in the first tree is a leaf in the second. So no rank sends more than twice the tensor, in as
many rounds as a single tree, whose inner ranks send it three times. The second tree is the first one with the ranks
counted from the other end: the lower half of the ranks are inner ranks of the first tree, the upper half of the second.
Pure.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.collectives.schedules.schedule import Program, TransferTimetable
from shoal.collectives.schedules.tree import TreePlace, add_all_reduce, place_of


def places(size: int, rank: int) -> tuple[TreePlace, TreePlace]:
    """Where a rank sits in each of the two trees."""
    mirrored = place_of(size, size - 1 - rank, root=0)
    second = TreePlace(
        parent=None if mirrored.parent is None else size - 1 - mirrored.parent,
        children=tuple(size - 1 - child for child in mirrored.children),
        depth=mirrored.depth,
    )
    return place_of(size, rank, root=0), second


@lru_cache(maxsize=256)
def double_tree_all_reduce(size: int, rank: int, *, segments: int) -> Program:
    """`segments`: how many segments each half is cut into."""
    timetable = TransferTimetable(lanes=4)
    deepest = place_of(size, size - 1, root=0).depth
    for half, place in enumerate(places(size, rank)):
        add_all_reduce(timetable, 2 * half, place, deepest, range(half * segments, (half + 1) * segments))
    return timetable.build(2 * segments)
