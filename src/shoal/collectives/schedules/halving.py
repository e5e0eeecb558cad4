"""Recursive halving and doubling: as few bytes as a ring and about as few rounds as a tree, for any number of ranks.

Scatter-reduce halves what a rank is still concerned with: with s blocks left it sends those from the middle on to the
rank that lies half of s further, and gets from the rank as far behind it that one's part of the blocks it keeps.
All-gather goes the same way back. That is ceil(log2 n) rounds each way, and every rank sends and receives n-1 of the n
blocks each way, also where n is no power of two: no rank is folded onto another. (The partners are those of a circulant
graph; Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.)

A block's sum is made on one rank and then copied: one order of summing for all. Neighbouring blocks travel in one
frame, which all-reduce can do because its blocks lie side by side in one tensor. Pure.
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
    """How many blocks a rank is concerned with before and after each round, until it is one."""
    found = []
    while size > 1:
        half = (size + 1) // 2
        found.append((size, half))
        size = half
    return found


def _halve(builder: ProgramBuilder, size: int, rank: int, *, joins: bool) -> None:
    # Blocks are counted from the rank's own on, which it keeps to the end.
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
    """So many blocks from `first` on, around the end, as runs of neighbours, or each by itself."""
    first %= size
    if not joins:
        yield from (range(block % size, block % size + 1) for block in range(first, first + count))
        return
    yield range(first, min(first + count, size))
    if first + count > size:
        yield range(first + count - size)
