"""Collectives through host memory in overlapping turns: right whenever the copies happen, with threads for ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.gpu import gpu_cuts
from shoal.collectives.gpu.ferry import Ferry
from shoal.collectives.group import Reduction
from shoal.errors import WorkersDisagree
from shoal.transport.mesh import in_process
from shoal.wire.frames import FrameKind
from support.collectives import IN_MEMORY, groups, in_threads, succeed
from support.slow_copies import SlowCopies

SIZE = 3
ITEM = 4  # bytes

many = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
sizes = some.lists(some.integers(0, 90), min_size=SIZE, max_size=SIZE)
seeds = some.integers(0, 2**32)


WAYS = [(IN_MEMORY, "auto", 0.5), ("in-process", "ring", 0.0005), ("in-process", "tree", 0.0005)]  # last: STALL_SECONDS
numbered = itertools.count()  # a group gives every operation a number of its own


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "-".join(map(str, way)))
def exchangers(request: pytest.FixtureRequest) -> Iterator[list[Exchanger]]:
    patched = pytest.MonkeyPatch()
    patched.setattr(gpu_cuts, "LEAST_BYTES", 8 * ITEM)
    patched.setattr(gpu_cuts, "MOST_BYTES", 16 * ITEM)
    patched.setattr(in_process, "STALL_SECONDS", request.param[2])
    with groups(request.param[0], SIZE, request.param[1]) as made:
        yield [group._exchanger for group in made]
    patched.undo()


def on_all(exchangers: Sequence[Exchanger], seed: int, call: Callable[[Ferry], None]) -> list[SlowCopies]:
    copies = [SlowCopies(seed + rank) for rank in range(SIZE)]
    succeed(*(lambda rank=rank: call(Ferry(exchangers[rank], copies[rank])) for rank in range(SIZE)))
    return copies


def operation(kind: FrameKind, elements: int, *, number: int | None = None, scale: float = 1.0) -> Operation:
    reduction = Reduction.SUM if kind in (FrameKind.ALL_REDUCE, FrameKind.REDUCE_SCATTER) else None
    dtype = torch.int32 if scale == 1.0 else torch.float32
    return Operation(kind, next(numbered) if number is None else number, "a test", dtype, elements, reduction, scale)


def numbers(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 1000, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


@many
@given(counts=sizes, seed=seeds)
def test_all_reduce_of_several_tensors(exchangers: list[Exchanger], counts: list[int], seed: int) -> None:
    given_ = [[numbers(count, 10 * rank + place) for place, count in enumerate(counts)] for rank in range(SIZE)]
    sums = [sum(own[place] for own in given_) for place in range(SIZE)]
    what = operation(FrameKind.ALL_REDUCE, sum(counts))
    on_all(exchangers, seed, lambda ferry: ferry.all_reduce(what, given_[ferry.rank]))
    for own in given_:
        for tensor, expected in zip(own, sums, strict=True):
            assert torch.equal(tensor, expected)


@many
@given(counts=sizes, seed=seeds, in_place=some.booleans())
def test_reduce_scatter(exchangers: list[Exchanger], counts: list[int], seed: int, in_place: bool) -> None:
    parts = [[numbers(count, 10 * rank + place) for place, count in enumerate(counts)] for rank in range(SIZE)]
    expected = [sum(own[place] for own in parts) for place in range(SIZE)]
    kept = [[part.clone() for part in own] for own in parts]
    outputs = [parts[rank][rank] if in_place else numbers(counts[rank], 99) for rank in range(SIZE)]
    what = operation(FrameKind.REDUCE_SCATTER, sum(counts))
    on_all(exchangers, seed, lambda ferry: ferry.reduce_scatter(what, outputs[ferry.rank], parts[ferry.rank]))
    for rank in range(SIZE):
        assert torch.equal(outputs[rank], expected[rank])
        for place in range(SIZE):
            assert (in_place and place == rank) or torch.equal(parts[rank][place], kept[rank][place])


@many
@given(counts=sizes, seed=seeds)
def test_all_gather(exchangers: list[Exchanger], counts: list[int], seed: int) -> None:
    own = [numbers(count, rank) for rank, count in enumerate(counts)]
    outputs = [[numbers(count, 50) for count in counts] for _ in range(SIZE)]
    what = operation(FrameKind.ALL_GATHER, sum(counts))
    on_all(exchangers, seed, lambda ferry: ferry.all_gather(what, outputs[ferry.rank], own[ferry.rank]))
    for found in outputs:
        assert all(torch.equal(one, other) for one, other in zip(found, own, strict=True))


@many
@given(table=some.lists(sizes, min_size=SIZE, max_size=SIZE), seed=seeds)
def test_all_to_all(exchangers: list[Exchanger], table: list[list[int]], seed: int) -> None:
    inputs = [[numbers(table[rank][to], 10 * rank + to) for to in range(SIZE)] for rank in range(SIZE)]
    outputs = [[numbers(table[source][rank], 77) for source in range(SIZE)] for rank in range(SIZE)]
    what = operation(FrameKind.ALL_TO_ALL, 0)
    on_all(exchangers, seed, lambda ferry: ferry.all_to_all(what, outputs[ferry.rank], inputs[ferry.rank]))
    for rank in range(SIZE):
        for source in range(SIZE):
            assert torch.equal(outputs[rank][source], inputs[source][rank])


@many
@given(count=some.integers(0, 200), source=some.integers(0, SIZE - 1), seed=seeds)
def test_broadcast(exchangers: list[Exchanger], count: int, source: int, seed: int) -> None:
    tensors = [numbers(count, rank) for rank in range(SIZE)]
    expected = tensors[source].clone()
    what = operation(FrameKind.BROADCAST, count)
    on_all(exchangers, seed, lambda ferry: ferry.broadcast(what, tensors[ferry.rank], source))
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_each_ranks_values_count_by_its_scale(exchangers: list[Exchanger]) -> None:
    tensors = [torch.full((100,), float(rank + 1)) for rank in range(SIZE)]
    scales = [0.5, 2.0, 0.25]

    number = next(numbered)

    def reduce(ferry: Ferry) -> None:
        what = operation(FrameKind.ALL_REDUCE, 100, number=number, scale=scales[ferry.rank])
        ferry.all_reduce(what, [tensors[ferry.rank]])

    on_all(exchangers, 0, reduce)
    assert all(torch.equal(tensor, torch.full((100,), 0.5 + 4.0 + 0.75)) for tensor in tensors)


def test_copies_go_on_while_a_turn_is_reduced(exchangers: list[Exchanger]) -> None:
    class Watching(SlowCopies):
        seen = 0

        def up(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> object:
            self.seen = max(self.seen, self.under_way)  # before this one: the next turn's way down, at least
            return super().up(targets, source)

        def _move_on(self, name: str) -> None:
            """Never before it must."""

    copies = [Watching(rank) for rank in range(SIZE)]
    tensors = [numbers(300, rank) for rank in range(SIZE)]
    what = operation(FrameKind.ALL_REDUCE, 300)
    succeed(*(lambda r=r: Ferry(exchangers[r], copies[r]).all_reduce(what, [tensors[r]]) for r in range(SIZE)))
    assert all(each.seen >= 2 for each in copies)  # one on its way down and one on its way up, during a reduction


def test_ranks_whose_sizes_differ_find_out_before_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cuts, "LEAST_BYTES", 16 * ITEM)
    monkeypatch.setattr(gpu_cuts, "MOST_BYTES", 16 * ITEM)
    with groups(IN_MEMORY, 2) as made:
        lengths = [160, 128]  # full turns: the first eight are alike

        def reduce(rank: int) -> None:
            ferry = Ferry(made[rank]._exchanger, SlowCopies(rank))
            tensor = torch.ones(lengths[rank], dtype=torch.int32)
            ferry.all_reduce(operation(FrameKind.ALL_REDUCE, lengths[rank], number=0), [tensor])
            raise AssertionError("ranks of different sizes have agreed")

        errors = in_threads(lambda: reduce(0), lambda: reduce(1))
        assert all(isinstance(error, WorkersDisagree) for error in errors), errors
