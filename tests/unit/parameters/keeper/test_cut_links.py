"""Servers that cannot reach each other: one of them goes, the one that costs the least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.keeper.cut_links import SETTLING_SECONDS, CutLinks


def test_nobody_goes_before_all_who_are_concerned_could_say_so() -> None:
    cuts = CutLinks()
    cuts.said(1, (0,), now=10.0)
    assert cuts.victim((0, 1, 2), now=10.0 + SETTLING_SECONDS / 2) is None
    cuts.said(2, (0,), now=11.0)
    cuts.said(1, (0,), now=11.5)
    assert cuts.victim((0, 1, 2), now=10.0 + SETTLING_SECONDS) == (0, "it and server 1, 2 cannot reach each other")


def test_of_two_the_newer_goes() -> None:
    cuts = CutLinks()
    cuts.said(0, (3,), now=0.0)
    assert cuts.victim((0, 1, 3), now=SETTLING_SECONDS) == (3, "it and server 0 cannot reach each other")


def test_who_is_connected_again_or_gone_harms_nobody() -> None:
    cuts = CutLinks()
    cuts.said(0, (1, 2), now=0.0)
    cuts.said(0, (2,), now=1.0)
    assert cuts.victim((0, 1), now=9.0) is None
    cuts.said(0, (), now=10.0)
    assert cuts.victim((0, 1, 2), now=19.0) is None


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=12))
def test_after_those_who_have_to_go_everybody_reaches_everybody(cut: set[tuple[int, int]]) -> None:
    cuts, living = CutLinks(), set(range(6))
    for server in living:
        cuts.said(server, [other for first, other in cut if first == server], now=0.0)
    while (found := cuts.victim(living, now=SETTLING_SECONDS)) is not None:
        living.remove(found[0])
    assert not any({*pair} <= living for pair in cut)
    assert living
