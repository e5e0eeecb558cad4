"""Recursive halving and doubling: as few bytes as a ring and about as few rounds as a tree, for any number of ranks.

Scatter-reduce halves the blocks that a rank still handles. With s blocks left, a rank sends the second half of them to
the rank s/2 places ahead, and receives from the rank s/2 places behind its values for the first half. All-gather goes
the same way back. That takes ceil(log2 n) rounds each way, and every rank sends and receives n-1 of the n blocks each
way, even if n is no power of two: no rank is folded onto another. (The partners are those of a circulant graph; Träff,
"Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.)

A block's sum is made on one rank and then copied, so all ranks have one order of summing. In all-reduce the blocks lie
side by side in one tensor, so neighbouring blocks travel in one frame. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from shoal.collectives.schedules.schedule import Action, Program, ProgramBuilder


@lru_cache(maxsize=256)
def halving_all_reduce(size: int, rank: int) -> Program:
    builder = ProgramBuilder()
    _halve(builder, size, rank, joins=True)
    _double(builder, size, rank, joins=True)
    return builder.build(size)


@lru_cache(maxsize=256)
def halving_reduce_scatter(size: int, rank: int) -> Program:
    """The sum of segment r ends on rank r."""
    builder = ProgramBuilder()
    _halve(builder, size, rank, joins=False)
    return builder.build(size)


@lru_cache(maxsize=256)
def doubling_all_gather(size: int, rank: int) -> Program:
    """Segment r starts on rank r."""
    builder = ProgramBuilder()
    _double(builder, size, rank, joins=False)
    return builder.build(size)


def halvings(size: int) -> list[tuple[int, int]]:
    """How many blocks a rank handles before and after each round, until one is left."""
    found = []
    while size > 1:
        half = (size + 1) // 2
        found.append((size, half))
        size = half
    return found


def _halve(builder: ProgramBuilder, size: int, rank: int, *, joins: bool) -> None:
    # Blocks are counted from the rank's own block, which the rank keeps to the end.
    for step, (blocks, half) in enumerate(halvings(size)):
        for part, run in enumerate(_runs(size, rank + half, blocks - half, joins=joins)):
            builder.send(run if joins else run.start, (rank + half) % size, step * size + part)
        for part, run in enumerate(_runs(size, rank, blocks - half, joins=joins)):
            builder.receive(Action.REDUCE, run if joins else run.start, (rank - half) % size, step * size + part)


def _double(builder: ProgramBuilder, size: int, rank: int, *, joins: bool) -> None:
    rounds = halvings(size)
    for step, (blocks, half) in enumerate(reversed(rounds), start=len(rounds)):
        for part, run in enumerate(_runs(size, rank, blocks - half, joins=joins)):
            builder.send(run if joins else run.start, (rank - half) % size, step * size + part)
        for part, run in enumerate(_runs(size, rank + half, blocks - half, joins=joins)):
            builder.receive(Action.COPY, run if joins else run.start, (rank + half) % size, step * size + part)


def _runs(size: int, first: int, count: int, *, joins: bool) -> Iterator[range]:
    """`count` blocks from `first` on, wrapping around, as runs of neighbours (`joins`) or one by one."""
    first %= size
    if not joins:
        yield from (range(block % size, block % size + 1) for block in range(first, first + count))
        return
    yield range(first, min(first + count, size))
    if first + count > size:
        yield range(first + count - size)
