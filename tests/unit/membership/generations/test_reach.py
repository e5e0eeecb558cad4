"""Who stays when some workers cannot reach each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.membership.generations import reach
from shoal.membership.generations.reach import connected_set
from support.examples import scaled

Named = dict[int, set[int]]

workers = st.integers(0, 8)
names = st.dictionaries(workers, st.sets(workers, max_size=5), max_size=6)


def is_whole(chosen: Collection[int], named: Mapping[int, Collection[int]]) -> bool:
    return not any(
        worker in chosen and other in chosen and worker != other for worker in named for other in named[worker]
    )


def brute_force(candidates: set[int], named: Named, preferred: Sequence[set[int]]) -> frozenset[int]:
    """The best of all sets that are whole."""
    sizes = range(len(candidates) + 1)
    every = map(frozenset, chain.from_iterable(combinations(sorted(candidates), size) for size in sizes))
    levels = (*preferred, candidates)
    return min(
        (chosen for chosen in every if is_whole(chosen, named)),
        key=lambda chosen: ([-len(chosen & level) for level in levels], sorted(chosen)),
    )


@settings(max_examples=scaled(300), deadline=None)
@given(st.sets(workers, min_size=1), names, st.lists(st.sets(workers), max_size=2))
def test_the_set_is_the_best_of_all_that_are_whole(
    candidates: set[int], named: Named, preferred: list[set[int]]
) -> None:
    assert connected_set(candidates, named, preferred) == brute_force(candidates, named, preferred)


@settings(max_examples=scaled(150), deadline=None)
@given(st.sets(workers, min_size=1), names, st.lists(st.sets(workers), max_size=2))
def test_beyond_the_exact_search_it_is_whole_and_nobody_else_fits(
    candidates: set[int], named: Named, preferred: list[set[int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "BUDGET", 0)
        chosen = connected_set(candidates, named, preferred)
    assert chosen <= candidates
    assert is_whole(chosen, named)
    for other in candidates - chosen:
        assert not is_whole(chosen | {other}, named)


@given(st.sets(workers, min_size=1), names)
def test_it_does_not_matter_which_of_two_says_it(candidates: set[int], named: Named) -> None:
    mirrored: Named = {}
    for worker, others in named.items():
        for other in others:
            mirrored.setdefault(other, set()).add(worker)
    assert connected_set(candidates, named) == connected_set(candidates, mirrored)


@given(st.sets(workers, min_size=1), names)
def test_who_is_in_no_cut_always_stays(candidates: set[int], named: Named) -> None:
    cut = {worker for worker, others in named.items() if others & candidates - {worker}} | set().union(*named.values())
    assert candidates - cut <= connected_set(candidates, named)


def test_of_two_that_cannot_reach_each_other_the_preferred_one_stays_and_then_the_lower_number() -> None:
    assert connected_set([0, 1], {0: (1,)}, [[1]]) == {1}
    assert connected_set([0, 1], {0: (1,)}, [[0, 1]]) == {0}


def test_one_that_nobody_reaches_goes_and_the_others_stay() -> None:
    assert connected_set(range(5), dict.fromkeys(range(5), (2,))) == {0, 1, 3, 4}


def hosts(*sizes: int) -> list[tuple[int, ...]]:
    """Workers by host, numbered through."""
    numbers = iter(range(sum(sizes)))
    return [tuple(next(numbers) for _ in range(size)) for size in sizes]


@pytest.mark.parametrize(("sizes", "staying"), [((1, 3, 4), {0, 4, 5, 6, 7}), ((1, 2, 1), {0, 1, 2})])
def test_of_two_hosts_that_cannot_reach_each_other_the_larger_one_stays(
    sizes: tuple[int, ...], staying: set[int]
) -> None:
    _, left, right = hosts(*sizes)
    assert connected_set(range(sum(sizes)), dict.fromkeys(left, right) | dict.fromkeys(right, left)) == staying
    assert connected_set(range(sum(sizes)), dict.fromkeys(left, right)) == staying, "one side's word is enough"


def test_of_three_hosts_that_cannot_reach_each_other_the_largest_one_stays() -> None:
    first, second, third = hosts(2, 3, 2)
    named = dict.fromkeys(first, second + third) | dict.fromkeys(second, first + third)
    assert connected_set(range(7), named) == set(second)


def test_ten_thousand_workers_on_hosts_that_are_cut_are_decided_exactly() -> None:
    """Every worker names thousands: what counts is that few of them say different things."""
    parts = hosts(4000, 1000, 3000, 2000)
    cut = {0: (2,), 2: (0, 3), 3: (2,)}  # 0 or 2 with 3 stays; with 1 in any case
    named: dict[int, tuple[int, ...]] = {}
    for part, far in cut.items():
        named |= dict.fromkeys(parts[part], tuple(chain(*(parts[other] for other in far))))
    assert connected_set(range(10_000), named) == {*parts[0], *parts[1], *parts[3]}


def test_thousands_of_links_that_fail_by_themselves_are_decided_too() -> None:
    random = Random(1)
    size = 3000
    named = {worker: tuple(random.sample(range(size), 3)) for worker in range(size)}
    chosen = connected_set(range(size), named)
    assert is_whole(chosen, named)
    # Greedy choices guarantee a share of all: workers over one more than the cuts that a worker has on average.
    assert len(chosen) >= size // 7
