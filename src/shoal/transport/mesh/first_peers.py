"""Which ranks of a mesh are connected from the beginning. Pure.

In a small mesh all are: that costs milliseconds, and each rank sees at once when any other is gone. In a large one a
rank begins with its neighbours around a ring and in a binary tree: through the tree all ranks introduce themselves, and
the schedules for the smallest and the largest tensors need nothing else. News of a lost rank goes from neighbour to
neighbour. Other connections are made when something is sent there (`tcp.later`).
"""

from __future__ import annotations

# Ranks. A schedule of few rounds connects a rank of a large mesh with about as many others: 20 of 1,000.
FULL_UP_TO = 32


def parent_of(rank: int) -> int | None:
    """In the tree, whose root is rank 0."""
    return (rank - 1) // 2 if rank else None


def children_of(rank: int, size: int) -> tuple[int, ...]:
    return tuple(child for child in (2 * rank + 1, 2 * rank + 2) if child < size)


def first_peers(rank: int, size: int) -> frozenset[int]:
    """The ranks that this one begins with. If one rank begins with another, the other begins with it too."""
    if size <= FULL_UP_TO:
        return frozenset(range(size)) - {rank}
    parent = parent_of(rank)
    found = {(rank - 1) % size, (rank + 1) % size, *children_of(rank, size)}
    return frozenset(found if parent is None else found | {parent})
