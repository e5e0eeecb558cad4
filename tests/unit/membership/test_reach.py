"""Who stays when some workers cannot reach each other."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.membership.reach import EXACT, connected_set

workers = st.integers(0, 9)
pairs = st.sets(st.tuples(workers, workers), max_size=12)


def is_whole(chosen: frozenset[int], cut: set[tuple[int, int]]) -> bool:
    return not any(first != second and first in chosen and second in chosen for first, second in cut)


@settings(max_examples=200, deadline=None)
@given(st.sets(workers, min_size=1), pairs, st.sets(workers))
def test_the_set_is_whole_and_no_larger_one_is(
    candidates: set[int], cut: set[tuple[int, int]], carriers: set[int]
) -> None:
    chosen = connected_set(candidates, cut, carriers)
    assert chosen <= candidates
    assert is_whole(chosen, cut)
    for other in combinations(sorted(candidates), len(chosen) + 1):
        assert not is_whole(frozenset(other), cut)
    for same in combinations(sorted(candidates), len(chosen)):
        if is_whole(frozenset(same), cut):
            assert len(carriers & set(same)) <= len(carriers & chosen), "a set with more carriers would do"


@given(st.sets(workers, min_size=1), pairs)
def test_the_order_and_direction_of_pairs_do_not_matter(candidates: set[int], cut: set[tuple[int, int]]) -> None:
    mirrored = [(second, first) for first, second in sorted(cut, reverse=True)]
    assert connected_set(candidates, cut, ()) == connected_set(candidates, mirrored, ())


def test_of_two_that_cannot_reach_each_other_the_carrier_stays_and_then_the_lower_number() -> None:
    assert connected_set([0, 1], [(0, 1)], [1]) == {1}
    assert connected_set([0, 1], [(0, 1)], [0, 1]) == {0}


def test_one_that_nobody_reaches_goes_and_the_others_stay() -> None:
    assert connected_set(range(5), [(worker, 2) for worker in range(5)], range(5)) == {0, 1, 3, 4}


def test_two_halves_of_a_large_job_that_do_not_see_each_other() -> None:
    """Beyond the exact search: still whole, and a half is the most there is."""
    size = 4 * EXACT
    cut = {(left, right) for left in range(0, size, 2) for right in range(1, size, 2)}
    chosen = connected_set(range(size), cut, range(size))
    assert is_whole(chosen, cut)
    assert len(chosen) == size // 2
