"""Which positions a resumed loop has used already, from where its checkpoint says that it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.training.loop.leasing import used_ranges
from shoal.values import Cursor
from shoal.wire.tables import Range

SAMPLES = 12


@given(
    st.integers(0, 3),
    st.integers(0, SAMPLES - 1),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, SAMPLES), st.integers(0, SAMPLES)), max_size=4),
)
def test_all_before_the_cursor_but_the_gaps(epoch: int, position: int, drawn: list[tuple[int, int, int]]) -> None:
    before = {(e, p) for e in range(epoch) for p in range(SAMPLES)} | {(epoch, p) for p in range(position)}
    gaps, open_ones = [], set()
    for at, one, other in drawn:
        covered = {(at, p) for p in range(min(one, other), max(one, other))}
        if covered and covered <= before and not covered & open_ones:
            gaps.append(Range(at, min(one, other), max(one, other)))
            open_ones |= covered
    used = used_ranges(0, Cursor(epoch, position), SAMPLES, tuple(gaps))
    places = [(piece.epoch, p) for piece in used for p in range(piece.start, piece.stop)]
    assert len(places) == len(set(places))
    assert set(places) == before - open_ones
