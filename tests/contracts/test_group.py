"""What every group promises, over each transport and schedule, between threads of one process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from shoal.codecs.identity import Identity
from shoal.collectives import texts
from shoal.collectives.group import Pending, Reduction
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError, UsageError
from shoal.settings.all_reduce_settings import SCHEDULES
from support.collectives import GROUP_KINDS, groups, meshes

ADDABLE = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
FUNCTIONS = {Reduction.SUM: torch.add, Reduction.MAX: torch.maximum, Reduction.MIN: torch.minimum}
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(params=GROUP_KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


def on_all(made: Sequence[ThreadedGroup], start: Callable[[ThreadedGroup], Pending]) -> None:
    for pending in [start(group) for group in made]:
        pending.wait()


def values(rank: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, different on every rank: their sums are exact in every dtype."""
    numbers = torch.randint(0, 5, tuple(shape), generator=torch.Generator().manual_seed(rank))
    return (numbers > 2) if dtype is torch.bool else numbers.to(dtype)


def reduced(tensors: Sequence[torch.Tensor], reduction: Reduction = Reduction.SUM) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = FUNCTIONS[reduction](total, tensor)
    return total


def test_all_reduce_is_torchs_own_sum_for_1_to_10_ranks(kind: tuple[str, str]) -> None:
    shapes = some.lists(some.integers(0, 7), max_size=3) | some.sampled_from([[1], [9999], [200_003], [3, 50_001]])

    @few
    @given(some.integers(1, 10), some.lists(some.tuples(shapes, some.sampled_from(ADDABLE)), min_size=1, max_size=4))
    def check(size: int, wanted: list[tuple[list[int], torch.dtype]]) -> None:
        with groups(kind[0], size, kind[1]) as made:
            inputs = [[values(rank, shape, dtype) for shape, dtype in wanted] for rank in range(size)]
            expected = [reduced(tensors) for tensors in zip(*inputs, strict=True)]
            started = [
                group.all_reduce(tensor, label=f"tensor {number}")
                for group in made
                for number, tensor in enumerate(inputs[group.rank])
            ]
            for pending in started:
                pending.wait()
            for own in inputs:
                for tensor, total in zip(own, expected, strict=True):
                    assert torch.equal(tensor, total)

    check()


def test_rounding_is_the_same_on_every_rank(kind: tuple[str, str]) -> None:
    for size in (3, 7):
        with groups(kind[0], size, kind[1]) as made:
            for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                generator = torch.Generator().manual_seed(size)
                tensors = [torch.randn(50_001, generator=generator).to(dtype) for _ in range(size)]
                exact = torch.stack(tensors).double().sum(0)
                on_all(made, lambda group, tensors=tensors: group.all_reduce(tensors[group.rank], label="rounded"))
                for tensor in tensors:
                    assert torch.equal(tensor.view(torch.uint8), tensors[0].view(torch.uint8))
                torch.testing.assert_close(
                    tensors[0].double(), exact, rtol=0, atol=size * size * torch.finfo(dtype).eps
                )


WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def any_whole_numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the whole range of their type, so that sums overflow."""
    return torch.from_numpy(np.random.default_rng(rank).integers(0, 256, count * dtype.itemsize, np.uint8)).view(dtype)


def divided_sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """As C has it: the sum wraps around in its own type, the quotient is cut towards zero."""
    total = reduced(tensors).numpy()
    return torch.from_numpy((total - np.fmod(total, len(tensors))) // len(tensors))


def test_the_mean_of_whole_numbers_is_their_wrapped_sum_divided_towards_zero(kind: tuple[str, str]) -> None:
    for size in (1, 2, 3, 4):
        with groups(kind[0], size, kind[1]) as made:
            for dtype, count in [*((dtype, 501) for dtype in WHOLE), (torch.int64, 40_001), (torch.int8, 40_001)]:
                tensors = [any_whole_numbers(rank, count, dtype) for rank in range(size)]
                expected = divided_sum(tensors)
                parts = [list(tensor.clone().split(-(-count // size))) for tensor in tensors]
                outputs = [torch.empty_like(part) for part in parts[0]]
                on_all(
                    made,
                    lambda group, o=outputs, p=parts: group.reduce_scatter(
                        o[group.rank], p[group.rank], label="means", reduction=Reduction.MEAN
                    ),
                )
                assert torch.equal(torch.cat(outputs), expected), (size, dtype)
                on_all(
                    made,
                    lambda group, t=tensors: group.all_reduce(t[group.rank], label="mean", reduction=Reduction.MEAN),
                )
                assert all(torch.equal(tensor, expected) for tensor in tensors), (size, dtype)


def test_the_mean_of_complex_numbers_and_of_tensors_with_strides(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        for dtype in (torch.complex64, torch.complex128):
            tensors = [torch.tensor([1 + 2j, 3 - 5j], dtype=dtype) * (rank + 1) for rank in range(2)]
            on_all(
                made,
                lambda group, t=tensors: group.all_reduce(t[group.rank], label="mean", reduction=Reduction.MEAN),
            )
            assert all(torch.equal(tensor, torch.tensor([1.5 + 3j, 4.5 - 7.5j], dtype=dtype)) for tensor in tensors)
        views = [(torch.arange(40).view(8, 5) - 20 * rank)[::2].t() for rank in range(2)]
        expected = divided_sum([view.flatten() for view in views]).view(views[0].shape)
        on_all(made, lambda group: group.all_reduce(views[group.rank], label="mean", reduction=Reduction.MEAN))
        assert all(torch.equal(view, expected) for view in views)


def test_a_mean_is_told_from_a_sum_and_refused_where_it_has_no_meaning(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        for dtype in (torch.bool, torch.float32):
            with pytest.raises(UsageError, match="mean"):
                made[0].all_reduce(torch.ones(2, dtype=dtype), label="m", reduction=Reduction.MEAN)
        reductions = (Reduction.MEAN, Reduction.SUM)
        started = [
            group.all_reduce(torch.ones(2, dtype=torch.int64), label="m", reduction=reductions[group.rank])
            for group in made
        ]
        with pytest.raises(ShoalError, match="mean of m"):
            for pending in started:
                pending.wait()


@pytest.mark.parametrize("reduction", [Reduction.MAX, Reduction.MIN], ids=lambda reduction: reduction.value)
def test_maximum_and_minimum(kind: tuple[str, str], reduction: Reduction) -> None:
    with groups(kind[0], 3, kind[1]) as made:
        for dtype in ADDABLE:
            if dtype.is_complex:
                continue
            tensors = [values(rank, (1001,), dtype) for rank in range(3)]
            expected = reduced(tensors, reduction)
            on_all(made, lambda group, t=tensors: group.all_reduce(t[group.rank], label="m", reduction=reduction))
            assert all(torch.equal(tensor, expected) for tensor in tensors), dtype


def test_infinities_and_nan_pass_through_without_a_warning(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        tensors = [torch.tensor([float("inf"), 1e38 * 3, float("nan")]), torch.tensor([float("-inf"), 1e38 * 3, 0.0])]
        on_all(made, lambda group: group.all_reduce(tensors[group.rank], label="extremes"))
        for tensor in tensors:
            assert tensor[0].isnan()
            assert tensor[1] == float("inf")
            assert tensor[2].isnan()


def test_any_stride(kind: tuple[str, str]) -> None:
    views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "transposed": lambda base: base.t(),
        "every other": lambda base: base[::2, 1::3],
        "no dimension": lambda base: base[3, 4],
        "flipped": lambda base: base.flip(0)[1:],
        "channels last": lambda base: base.view(1, 5, 8, 10).contiguous(memory_format=torch.channels_last),
        "expanded": lambda base: base[:, :1].expand(-1, 6),
        "empty": lambda base: base[:, 5:5],
    }
    with groups(kind[0], 3, kind[1]) as made:
        for name, view in views.items():
            tensors = [view(torch.arange(400.0).view(20, 20) * (rank + 1)) for rank in range(3)]
            expected = reduced([tensor.clone() for tensor in tensors])
            on_all(made, lambda group, t=tensors, name=name: group.all_reduce(t[group.rank], label=name))
            assert all(torch.equal(tensor, expected) for tensor in tensors), name


def test_what_lies_beside_a_view_stays(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        bases = [torch.ones(10, 10) for _ in range(2)]
        on_all(made, lambda group: group.all_reduce(bases[group.rank][:, ::2], label="half"))
        for base in bases:
            assert (base[:, ::2] == 2).all()
            assert (base[:, 1::2] == 1).all()


def test_conjugated_and_negated_views(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        bases = [torch.tensor([1 + 2j, 3 - 4j]) * (rank + 1) for rank in range(2)]
        on_all(made, lambda group: group.all_reduce(bases[group.rank].conj(), label="conjugates"))
        on_all(made, lambda group: group.all_reduce(bases[group.rank].conj().imag, label="negated"))
        for base in bases:
            assert torch.equal(base, torch.tensor([3 + 12j, 9 - 24j]))


def test_tensors_that_autograd_watches_are_changed_behind_its_back(kind: tuple[str, str]) -> None:
    """A weight is broadcast or a gradient reduced between forward and backward: autograd must not object."""
    with groups(kind[0], 2, kind[1]) as made:
        weights = [torch.full((4, 4), rank + 1.0, requires_grad=True) for rank in range(2)]
        losses = [(weight * weight).sum() for weight in weights]
        on_all(made, lambda group: group.all_reduce(weights[group.rank], label="whole"))
        on_all(made, lambda group: group.all_reduce(weights[group.rank].t()[1:], label="strided"))
        for weight, loss in zip(weights, losses, strict=True):
            loss.backward()
            assert weight.grad is not None


@few
@given(some.integers(1, 6), some.data())
def check_reduce_scatter(kind: tuple[str, str], size: int, data: some.DataObject) -> None:
    lengths = [data.draw(some.sampled_from([0, 1, 5, 1000, 70_001])) for _ in range(size)]
    dtype = data.draw(some.sampled_from(ADDABLE))
    with groups(kind[0], size, kind[1]) as made:
        inputs = [[values(10 * rank + place, (n,), dtype) for place, n in enumerate(lengths)] for rank in range(size)]
        kept = [[tensor.clone() for tensor in own] for own in inputs]
        outputs = [torch.empty(length, dtype=dtype) for length in lengths]
        on_all(made, lambda group: group.reduce_scatter(outputs[group.rank], inputs[group.rank], label="parts"))
        for rank, output in enumerate(outputs):
            assert torch.equal(output, reduced([own[rank] for own in kept]))
        assert all(
            torch.equal(a, b) for own, old in zip(inputs, kept, strict=True) for a, b in zip(own, old, strict=True)
        )


def test_reduce_scatter_gives_each_rank_its_part_and_keeps_the_inputs(kind: tuple[str, str]) -> None:
    check_reduce_scatter(kind)


@few
@given(some.integers(1, 6), some.data())
def check_all_gather(kind: tuple[str, str], size: int, data: some.DataObject) -> None:
    shapes = [data.draw(some.sampled_from([(), (0,), (3,), (2, 5), (300, 301)])) for _ in range(size)]
    dtype = data.draw(some.sampled_from([*ADDABLE, torch.uint16, torch.float8_e5m2]))
    with groups(kind[0], size, kind[1]) as made:
        inputs = [values(rank, shape, torch.uint8).to(dtype) for rank, shape in enumerate(shapes)]
        outputs = [[torch.zeros(shape, dtype=torch.uint8).to(dtype) for shape in shapes] for _ in range(size)]
        on_all(made, lambda group: group.all_gather(outputs[group.rank], inputs[group.rank], label="all"))
        for own in outputs:
            for output, tensor in zip(own, inputs, strict=True):
                assert torch.equal(
                    output.view(torch.uint8) if output.dim() else output,
                    tensor.view(torch.uint8) if tensor.dim() else tensor,
                )


def test_all_gather_brings_every_ranks_tensor_of_any_shape(kind: tuple[str, str]) -> None:
    check_all_gather(kind)


@few
@given(some.integers(1, 10), some.data())
def check_broadcast(kind: tuple[str, str], size: int, data: some.DataObject) -> None:
    source = data.draw(some.integers(0, size - 1))
    shape = data.draw(some.sampled_from([(), (0,), (7,), (3, 4), (400_001,)]))
    with groups(kind[0], size, kind[1]) as made:
        tensors = [values(rank, shape, torch.float32) for rank in range(size)]
        expected = tensors[source].clone()
        on_all(made, lambda group: group.broadcast(tensors[group.rank], source, label="from one"))
        assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_broadcast_from_any_rank(kind: tuple[str, str]) -> None:
    check_broadcast(kind)


def test_broadcast_into_any_stride(kind: tuple[str, str]) -> None:
    with groups(kind[0], 3, kind[1]) as made:
        bases = [torch.full((6, 6), float(rank)) for rank in range(3)]
        on_all(made, lambda group: group.broadcast(bases[group.rank][::2].t(), 2, label="strided"))
        assert all((base[::2] == 2).all() for base in bases)
        assert (bases[0][1::2] == 0).all()


def test_send_and_receive_between_collectives(kind: tuple[str, str]) -> None:
    """Ranks that take no part in a send do not count it; the collectives around it still match."""
    with groups(kind[0], 3, kind[1]) as made:
        tensors = [torch.full((5, 5), float(rank)) for rank in range(3)]
        sums = [torch.ones(3) for _ in range(3)]
        started = [made[0].send(tensors[0].t(), 2, label="a"), made[2].receive(tensors[2].t(), 0, label="a")]
        started += [group.all_reduce(sums[group.rank], label="between") for group in made]
        started += [made[2].send(tensors[2], 1, label="b"), made[1].receive(tensors[1], 2, label="b")]
        started += [group.all_reduce(sums[group.rank], label="after") for group in made]
        for pending in started:
            pending.wait()
        assert all((tensor == 0).all() for tensor in tensors)
        assert all((total == 9).all() for total in sums)


def test_operations_return_at_once_and_finish_in_order(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        tensors = [torch.ones(1000) for _ in range(20)]
        mine = [made[0].all_reduce(tensor, label=f"{number}") for number, tensor in enumerate(tensors)]
        assert not any(pending.is_done for pending in mine)  # the other rank has not come
        theirs = [made[1].all_reduce(torch.ones(1000), label=f"{number}") for number in range(20)]
        mine[-1].wait()
        assert all(pending.is_done for pending in mine)
        for pending in theirs:
            pending.wait()
        assert all((tensor == 2).all() for tensor in tensors)


def test_bytes_and_waiting_are_counted(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        on_all(made, lambda group: group.all_reduce(torch.ones(100_000), label="counted"))
        for group in made:
            assert 400_000 <= group.bytes_sent < 402_000
            assert group.idle_seconds >= 0.0
            assert group.current_label == ""


def test_misuse_is_refused_at_the_call(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        group = made[0]
        one = torch.ones(3)
        for call, text in (
            (lambda: group.broadcast(one, 2, label="x"), texts.no_rank("x", 2, 2)),
            (lambda: group.send(one, 0, label="x"), texts.with_itself("x", 0)),
            (lambda: group.all_gather([one], one, label="x"), texts.wrong_count("x", "all_gather", 2, 1)),
            (
                lambda: group.all_gather([one, one.int()], one, label="x"),
                texts.several_dtypes("x", "all_gather", one.dtype),
            ),
            (
                lambda: group.reduce_scatter(one[:2], [one, one], label="x"),
                texts.unequal_shapes("x", "reduce_scatter", 0, ((3,), (2,))),
            ),
            (lambda: group.all_reduce(one.to_sparse(), label="x"), texts.not_dense("x", torch.sparse_coo)),
            (
                lambda: group.all_reduce(one.to(torch.float8_e5m2), label="x"),
                texts.cannot_reduce(torch.float8_e5m2),
            ),
            (lambda: group.all_reduce(one.cfloat(), label="x", reduction=Reduction.MAX), texts.no_order("max")),
        ):
            with pytest.raises(UsageError, match=re.escape(text)):
                call()
        on_all(made, lambda group: group.all_reduce(torch.ones(3), label="still fine"))


def test_an_unknown_schedule_is_refused() -> None:
    with meshes("in-process", 2) as ends, pytest.raises(UsageError, match=texts.no_schedule("star", SCHEDULES)):
        ThreadedGroup.over(ends[0], 1, "star", Identity())
