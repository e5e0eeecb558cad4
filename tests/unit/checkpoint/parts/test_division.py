"""Every byte of a state is written by exactly one worker, and the work is even."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoint.parts.division import SMALLEST_CUT, Extent, divide

shapes = st.lists(st.integers(0, 600), max_size=3).map(tuple)
states = st.lists(st.builds(Extent, shapes, st.sampled_from([1, 2, 4, 8])), max_size=12)


@given(states, st.integers(1, 9))
def test_every_row_is_in_exactly_one_part(extents: list[Extent], parts: int) -> None:
    plan = divide(extents, parts)
    assert len(plan) == parts
    for index, extent in enumerate(extents):
        pieces = sorted((rows.start, rows.count) for part in plan for rows in part if rows.tensor == index)
        expected = 0
        for start, count in pieces:
            assert start == expected
            expected = start + count
        assert expected == (extent.shape[0] if extent.shape else 1)
        assert len(pieces) == 1 or all(count for _, count in pieces)


@given(states, st.integers(1, 9))
def test_no_part_is_larger_than_its_share_and_what_cannot_be_cut(extents: list[Extent], parts: int) -> None:
    total = sum(extent.size for extent in extents)
    whole_pieces = max(
        (
            extent.size if extent.size < SMALLEST_CUT or not extent.shape else extent.size // max(1, extent.shape[0])
            for extent in extents
        ),
        default=0,
    )
    for part in divide(extents, parts):
        size = sum(rows.count * _row_bytes(extents[rows.tensor]) for rows in part)
        assert size <= math.ceil(total / parts) + 2 * whole_pieces


def test_a_large_tensor_is_shared_out_by_rows() -> None:
    parts = divide([Extent((1000, 100), 4)], 4)
    assert [[(rows.start, rows.count) for rows in part] for part in parts] == [
        [(0, 250)],
        [(250, 250)],
        [(500, 250)],
        [(750, 250)],
    ]


def _row_bytes(extent: Extent) -> int:
    return math.prod(extent.shape[1:]) * extent.element_bytes if extent.shape else extent.element_bytes
