"""Ring schedules: every rank sends to its right neighbour only. For large tensors: bytes matter more than rounds.

All-reduce is scatter-reduce, then all-gather: 2(n-1) rounds, in which a rank sends every segment but one, twice. A
segment's sum is made along one path around the ring and then copied, so all ranks have one order of summing. `order`:
the ranks in their order around the ring; empty means 0, 1, 2, ... Pure.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.collectives.schedules.schedule import Action, Program, ProgramBuilder, placed


@lru_cache(maxsize=256)
def ring_all_reduce(size: int, rank: int, *, order: tuple[int, ...] = ()) -> Program:
    if order:
        return placed(ring_all_reduce(size, order.index(rank)), order)
    builder = ProgramBuilder()
    _reduce_around(builder, size, rank, first=rank)  # leaves the sum of segment rank+1 here
    _copy_around(builder, size, rank, first=rank + 1, number=size - 1)
    return builder.build(size)


@lru_cache(maxsize=256)
def ring_reduce_scatter(size: int, rank: int, *, order: tuple[int, ...] = ()) -> Program:
    """The sum of segment r ends on rank r."""
    if order:
        return placed(ring_reduce_scatter(size, order.index(rank)), order, order)
    builder = ProgramBuilder()
    _reduce_around(builder, size, rank, first=rank - 1)
    return builder.build(size)


@lru_cache(maxsize=256)
def ring_all_gather(size: int, rank: int, *, order: tuple[int, ...] = ()) -> Program:
    """Segment r starts on rank r."""
    if order:
        return placed(ring_all_gather(size, order.index(rank)), order, order)
    builder = ProgramBuilder()
    _copy_around(builder, size, rank, first=rank, number=0)
    return builder.build(size)


@lru_cache(maxsize=256)
def ring_broadcast(size: int, rank: int, *, source: int, segments: int, order: tuple[int, ...] = ()) -> Program:
    """A chain from the source to its left neighbour; a rank forwards a segment while it receives the next."""
    if order:
        return placed(ring_broadcast(size, order.index(rank), source=order.index(source), segments=segments), order)
    builder = ProgramBuilder()
    behind = (rank - source) % size  # how many ranks the data passes before this one
    for segment in range(segments):
        if behind > 0:
            builder.receive(Action.COPY, segment, (rank - 1) % size, segment)
        if behind < size - 1:
            builder.send(segment, (rank + 1) % size, segment)
    return builder.build(segments)


def _reduce_around(builder: ProgramBuilder, size: int, rank: int, *, first: int) -> None:
    """`first` is the segment this rank starts with; its left neighbour starts with the one before."""
    for step in range(size - 1):
        builder.send((first - step) % size, (rank + 1) % size, step)
        builder.receive(Action.REDUCE, (first - step - 1) % size, (rank - 1) % size, step)


def _copy_around(builder: ProgramBuilder, size: int, rank: int, *, first: int, number: int) -> None:
    for step in range(size - 1):
        builder.send((first - step) % size, (rank + 1) % size, number + step)
        builder.receive(Action.COPY, (first - step - 1) % size, (rank - 1) % size, number + step)
