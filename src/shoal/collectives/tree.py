"""Tree schedules: a binary tree of ranks, for tensors whose rounds matter more than their bytes.

All-reduce sums from the leaves to the root (own value, then first child, then second) and copies back down; broadcast
is the way down alone. Large tensors are cut into segments that follow each other through the tree. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shoal.collectives.schedule import Action, Program, ProgramBuilder


@dataclass(frozen=True)
class Place:
    """Where a rank sits in the tree."""

    parent: int | None  # None: the root
    children: tuple[int, ...]
    depth: int  # steps to the root


def place_of(size: int, rank: int, *, root: int) -> Place:
    """Positions are numbered from the root, row by row: position p has the children 2p+1 and 2p+2."""
    position = (rank - root) % size
    children = tuple((child + root) % size for child in (2 * position + 1, 2 * position + 2) if child < size)
    parent = None if position == 0 else ((position - 1) // 2 + root) % size
    return Place(parent=parent, children=children, depth=(position + 1).bit_length() - 1)


@lru_cache(maxsize=256)
def tree_all_reduce(size: int, rank: int, *, segments: int) -> Program:
    builder = ProgramBuilder()
    place = place_of(size, rank, root=0)
    # A segment comes back down about 2*depth slots after it went up: in between, later segments go up.
    for slot in range(segments + 2 * place.depth):
        if slot < segments:
            for child in place.children:
                builder.receive(Action.REDUCE, slot, child, slot)
            if place.parent is not None:
                builder.send(slot, place.parent, slot)
        _pass_down(builder, place, slot - 2 * place.depth, segments)
    return builder.build(segments)


@lru_cache(maxsize=256)
def tree_broadcast(size: int, rank: int, *, source: int, segments: int) -> Program:
    builder = ProgramBuilder()
    place = place_of(size, rank, root=source)
    for segment in range(segments):
        _pass_down(builder, place, segment, segments)
    return builder.build(segments)


def _pass_down(builder: ProgramBuilder, place: Place, segment: int, segments: int) -> None:
    if not 0 <= segment < segments:
        return
    number = segments + segment  # after the way up
    if place.parent is not None:
        builder.receive(Action.COPY, segment, place.parent, number)
    for child in place.children:
        builder.send(segment, child, number)
