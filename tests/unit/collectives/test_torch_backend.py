"""The pure parts of the torch backend: parts of tensors, operators, silences, and whose time is over."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import AllreduceOptions, ReduceOp, ReduceOptions

from shoal.collectives import texts
from shoal.collectives.group import Reduction
from shoal.collectives.torch_backend.calls import WrongCall, options
from shoal.collectives.torch_backend.deadlines import Deadline, Deadlines
from shoal.collectives.torch_backend.layout import equal_parts, label_of, split_parts
from shoal.collectives.torch_backend.reductions import reduction_of
from shoal.collectives.torch_backend.vigil import Silences
from shoal.errors import UsageError

SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(count=st.integers(1, 6), rows=st.integers(0, 4), columns=st.integers(1, 3), is_turned=st.booleans())
def test_equal_parts_are_views_that_make_up_the_whole(count: int, rows: int, columns: int, is_turned: bool) -> None:
    shape = (count * rows, columns)
    whole = torch.zeros(shape[::-1]).t() if is_turned else torch.zeros(shape)
    parts = equal_parts(whole, count, rows * columns)
    assert [part.numel() for part in parts] == [rows * columns] * count
    for number, part in enumerate(parts):
        part.fill_(number)
    assert whole.flatten().tolist() == [float(number) for number in range(count) for _ in range(rows * columns)]


@given(sizes=SIZES)
def test_split_parts_have_the_sizes_asked_for(sizes: list[int]) -> None:
    parts = split_parts(torch.arange(sum(sizes)), sizes, len(sizes), "input")
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat(parts), torch.arange(sum(sizes)))


@pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 2], [1, 1, 1, 1]])
def test_split_sizes_that_do_not_fit_are_refused(sizes: list[int]) -> None:
    with pytest.raises(UsageError, match=re.escape(texts.wrong_splits("input", sizes, 3, 3))):
        split_parts(torch.zeros(3), sizes, 3, "input")


def test_labels_tell_shapes_apart_but_not_single_dimensions() -> None:
    assert label_of(torch.zeros(2, 3)) != label_of(torch.zeros(3, 2))
    assert label_of(torch.zeros(2, 1, 3)) == label_of(torch.zeros(1, 2, 3))
    assert label_of(torch.zeros(())) == label_of(torch.zeros(1))


def test_operators_become_reductions_and_scales() -> None:
    made = AllreduceOptions()
    for operator, expected in (
        (ReduceOp.SUM, (Reduction.SUM, 1.0)),
        (ReduceOp.AVG, (Reduction.SUM, 0.25)),
        (ReduceOp.MAX, (Reduction.MAX, 1.0)),
        (ReduceOp.BXOR, (Reduction.XOR, 1.0)),
        (torch.distributed._make_nccl_premul_sum(3.0), (Reduction.SUM, 3.0)),
    ):
        made.reduceOp = operator
        assert reduction_of(made.reduceOp, torch.float32, 4) == expected
    made.reduceOp = ReduceOp.AVG
    for dtype in (torch.int32, torch.uint8, torch.complex64):
        assert reduction_of(made.reduceOp, dtype, 4) == (Reduction.MEAN, 1.0)
    with pytest.raises(UsageError, match=texts.AVERAGE_OF_BOOLEANS):
        reduction_of(made.reduceOp, torch.bool, 4)


def test_short_forms_of_calls_mean_what_they_mean_in_torch() -> None:
    assert options(None, AllreduceOptions).asyncOp
    assert options(ReduceOp.MAX, AllreduceOptions).reduceOp == ReduceOp.MAX
    rooted = options(2, ReduceOptions, ReduceOp.MIN)
    assert rooted.rootRank == 2
    assert rooted.reduceOp == ReduceOp.MIN
    with pytest.raises(WrongCall):
        options("sum", AllreduceOptions)


@given(answers=st.lists(st.sets(st.integers(1, 3)), max_size=20))
def test_only_a_rank_that_was_silent_all_the_time_is_lost(answers: list[set[int]]) -> None:
    """Questions every second; five seconds of silence are too long."""
    silences, asked = Silences(limit=5.0), {1: "", 2: "", 3: ""}
    for second, answered in enumerate(answers):
        lost = silences.observe(asked, answered, (float(second), second + 1.0))
        last_five = answers[max(0, second - 4) : second + 1]
        silent = {rank for rank in asked if len(last_five) == 5 and not any(rank in heard for heard in last_five)}
        assert (lost is None) == (not silent)
        assert lost is None or lost in silent


class Hanging:
    """A group whose operation began long ago."""

    stalled = 10.0


class Idle:
    stalled = 0.0


def test_time_runs_out_once_for_the_group_that_hangs_and_for_no_other() -> None:
    told: list[str] = []
    is_over = threading.Event()

    def run_out(_what: str, limit: float) -> None:
        told.append(f"hanging for {limit}")
        is_over.set()

    def never(*_given: object) -> None:
        told.append("the wrong one")

    watch = Deadlines()
    idle = Deadline(Idle(), 3600.0, never, never)
    hanging = Deadline(Hanging(), 5.0, run_out, never)
    watch.add(idle)
    watch.add(hanging)
    assert is_over.wait(10)
    watch.look()
    watch.remove(hanging)
    watch.remove(idle)
    assert told == ["hanging for 5.0"]
