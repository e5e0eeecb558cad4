"""Tree schedules: a binary tree of ranks, for tensors so small that rounds matter more than bytes.

All-reduce sums from the leaves to the root (own value, then first child, then second) and copies back down; broadcast
is the way down alone. Large tensors are cut into segments that follow each other through the tree. A chain is a tree
with a single branch. It sums in the order of the ranks, as shared memory does. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.collectives.schedules.schedule import Action, Program, ProgramBuilder, TransferTimetable


@dataclass(frozen=True)
class TreePlace:
    """Where a rank sits in the tree."""

    parent: int | None  # None: the root
    children: tuple[int, ...]
    depth: int  # steps to the root


def place_of(size: int, rank: int, *, root: int) -> TreePlace:
    """Positions are numbered from the root, row by row: position p has the children 2p+1 and 2p+2."""
    position = (rank - root) % size
    children = tuple((child + root) % size for child in (2 * position + 1, 2 * position + 2) if child < size)
    parent = None if position == 0 else ((position - 1) // 2 + root) % size
    return TreePlace(parent=parent, children=children, depth=_depth(position))


def _depth(position: int) -> int:
    return (position + 1).bit_length() - 1


@lru_cache(maxsize=256)
def tree_all_reduce(size: int, rank: int, *, segments: int) -> Program:
    timetable = TransferTimetable(lanes=2)
    place = place_of(size, rank, root=0)
    add_all_reduce(timetable, 0, place, _depth(size - 1), range(segments))
    if not place.children:
        timetable.hurry(0)
    return timetable.build(segments)


@lru_cache(maxsize=256)
def chain_all_reduce(size: int, rank: int, *, segments: int) -> Program:
    """From rank 0, the only leaf, up to the last rank, the root: the sum of ranks 0 to r is made on rank r."""
    timetable = TransferTimetable(lanes=2)
    place = TreePlace(
        parent=None if rank == size - 1 else rank + 1, children=(rank - 1,) if rank else (), depth=size - 1 - rank
    )
    add_all_reduce(timetable, 0, place, size - 1, range(segments))
    if not place.children:
        timetable.hurry(0)
    return timetable.build(segments)


@lru_cache(maxsize=256)
def tree_broadcast(size: int, rank: int, *, source: int, segments: int) -> Program:
    return down(place_of(size, rank, root=source), segments)


def add_all_reduce(
    timetable: TransferTimetable, lane: int, place: TreePlace, deepest: int, segments: Sequence[int]
) -> None:
    """A tree's way up in `lane` and its way down in the next lane. `deepest`: depth of the deepest rank.

    A segment comes back down 2*depth moments after it went up; in between, later segments go up.
    """
    for index, segment in enumerate(segments):
        moment = index + deepest - place.depth
        for child in place.children:
            timetable.receive(moment, lane, (Action.REDUCE, segment, child))
        if place.parent is not None:
            timetable.send(moment, lane, segment, place.parent)
        moment = index + deepest + place.depth
        if place.parent is not None:
            timetable.receive(moment, lane + 1, (Action.COPY, segment, place.parent))
        for child in place.children:
            timetable.send(moment, lane + 1, segment, child)


def up(place: TreePlace, segments: int) -> Program:
    """The sums of all segments come to the root."""
    builder = ProgramBuilder()
    for segment in range(segments):
        for child in place.children:
            builder.receive(Action.REDUCE, segment, child, segment)
        if place.parent is not None:
            builder.send(segment, place.parent, segment)
    return builder.build(segments)


def down(place: TreePlace, segments: int) -> Program:
    """The root's segments come to all ranks."""
    builder = ProgramBuilder()
    for segment in range(segments):
        if place.parent is not None:
            builder.receive(Action.COPY, segment, place.parent, segment)
        for child in place.children:
            builder.send(segment, child, segment)
    return builder.build(segments)
