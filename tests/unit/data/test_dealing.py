"""Dealing positions out to ranks: each exactly once, whatever the sizes, and also when workers come and go."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import texts
from shoal.data.dealing import BatchPart, Dealing, count_steps, deal, deal_step, piece_bounds, whole_batches
from shoal.errors import ShoalError, UsageError
from support.data import equal_dealings


@st.composite
def all_ranks(draw: st.DrawFn) -> list[Dealing]:
    """One dealing per rank, shares equal or not, some of them zero."""
    world_size = draw(st.integers(1, 12))
    shares = draw(
        st.one_of(
            st.just((1,) * world_size),
            st.lists(st.integers(0, 20), min_size=world_size, max_size=world_size).map(tuple).filter(any),
        )
    )
    batch_size, accumulate = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    return [Dealing(rank, shares, batch_size, accumulate) for rank in range(world_size)]


def dealt(dealings: list[Dealing], start: int, stop: int) -> list[tuple[BatchPart, ...]]:
    """The parts of all ranks, micro-batch by micro-batch; raises if ranks have different numbers of them."""
    return list(zip(*(deal(dealing, start=start, stop=stop) for dealing in dealings), strict=True))


def positions(micro_batches: list[tuple[BatchPart, ...]]) -> list[int]:
    return [position for parts in micro_batches for part in parts for position in range(part.start, part.stop)]


@settings(deadline=None)
@given(dealings=all_ranks(), samples=st.integers(0, 500), start=st.integers(0, 50))
def test_each_position_is_dealt_once_and_in_order(dealings: list[Dealing], samples: int, start: int) -> None:
    assert positions(dealt(dealings, start, start + samples)) == list(range(start, start + samples))


@settings(deadline=None)
@given(samples=st.integers(1, 500), changes=st.lists(st.tuples(all_ranks(), st.integers(1, 4)), min_size=1, max_size=6))
def test_each_position_is_dealt_once_when_workers_come_and_go(
    samples: int, changes: list[tuple[list[Dealing], int]]
) -> None:
    """Each change trains a few steps, then the next one goes on at the cursor; the last one to the end."""
    cursor, seen = 0, []
    for number, (dealings, steps) in enumerate(changes):
        micro_batches = dealt(dealings, cursor, samples)
        if number < len(changes) - 1:
            micro_batches = micro_batches[: steps * dealings[0].accumulate]
        seen += positions(micro_batches)
        cursor = micro_batches[-1][0].position_after if micro_batches else cursor
    assert seen == list(range(samples))


@settings(deadline=None)
@given(dealings=all_ranks(), samples=st.integers(1, 500))
def test_ranks_agree_on_steps(dealings: list[Dealing], samples: int) -> None:
    accumulate, position = dealings[0].accumulate, 0
    micro_batches = dealt(dealings, 0, samples)
    assert len(micro_batches) == accumulate * count_steps(dealings[0], samples)
    for first in range(0, len(micro_batches), accumulate):
        step = micro_batches[first : first + accumulate]
        in_step = sum(part.samples for parts in step for part in parts)
        position += in_step
        assert {(part.step_samples, part.position_after) for parts in step for part in parts} == {(in_step, position)}
        assert [{part.is_last for part in parts} for parts in step] == [{False}] * (accumulate - 1) + [{True}]


@settings(deadline=None)
@given(world_size=st.integers(1, 12), batch_size=st.integers(1, 9), accumulate=st.integers(1, 4), data=st.data())
def test_equal_shares_differ_by_one_at_most(
    world_size: int, batch_size: int, accumulate: int, data: st.DataObject
) -> None:
    dealings = equal_dealings(world_size, batch_size, accumulate)
    samples = data.draw(st.integers(1, dealings[0].step_size))
    for parts in dealt(dealings, 0, samples):
        sizes = [part.samples for part in parts if part.samples]
        assert not sizes or max(sizes) - min(sizes) <= 1
    full = dealt(dealings, 0, dealings[0].step_size)
    assert {part.samples for parts in full for part in parts} == {batch_size}


@settings(deadline=None)
@given(dealings=all_ranks(), data=st.data())
def test_no_piece_of_one_sample_where_two_are_possible(dealings: list[Dealing], data: st.DataObject) -> None:
    shares, world_size = dealings[0].shares, len(dealings)
    batch_size = data.draw(st.integers(2, 9))
    samples = data.draw(st.integers(2, world_size * batch_size))
    bounds = piece_bounds(shares, batch_size, samples)
    pieces = [stop - start for start, stop in itertools.pairwise(bounds)]
    assert 1 not in pieces
    if samples < 2 * world_size:
        assert sum(piece > 0 for piece in pieces) <= max(1, samples // 2)


def test_batch_size_one_gives_everybody_one() -> None:
    """Who asks for single samples gets them: idle workers would be the worse choice."""
    assert piece_bounds((1, 1, 1, 1), 1, 4) == (0, 1, 2, 3, 4)


def test_shares_set_the_proportion() -> None:
    assert piece_bounds((1, 3), 32, 64) == (0, 16, 64)
    assert piece_bounds((0, 1, 1), 4, 12) == (0, 0, 6, 12)


def test_few_samples_go_to_the_largest_shares() -> None:
    assert piece_bounds((1, 5, 1, 5), 8, 4) == (0, 0, 2, 2, 4)


def test_a_short_step_uses_few_micro_batches() -> None:
    parts = deal_step(Dealing(0, (1,), 4, accumulate=4), start=10, samples=5)
    assert [(part.start, part.stop) for part in parts] == [(10, 12), (12, 15), (15, 15), (15, 15)]


@settings(deadline=None)
@given(dealings=all_ranks(), samples=st.integers(0, 500))
def test_whole_batches_leave_no_incomplete_one(dealings: list[Dealing], samples: int) -> None:
    kept = whole_batches(dealings[0], samples)
    assert samples - dealings[0].micro_batch < kept <= samples
    for parts in dealt(dealings, 0, kept):
        assert sum(part.samples for part in parts) in (0, dealings[0].micro_batch)


@pytest.mark.parametrize(
    ("values", "named"), [((0, (1,), 0, 1), texts.bad_batch_size(0)), ((0, (1,), 1, 0), texts.bad_accumulate(0))]
)
def test_impossible_dealings_name_the_argument(values: tuple[int, tuple[int, ...], int, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Dealing(*values)


@pytest.mark.parametrize("shares", [(), (0, 0), (1, -1)])
def test_impossible_shares_are_refused(shares: tuple[int, ...]) -> None:
    with pytest.raises(ShoalError):
        Dealing(0, shares, 1)
