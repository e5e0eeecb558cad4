"""The plan of an exchange: each gradient in one group, one dtype per group, in the order that was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.strategies.all_reduce.gradient_plan import (
    GROUPS_OVER_LINKS,
    GradientSize,
    completed,
    first_order,
    group_size,
    plan_groups,
)

SIZES = st.lists(
    st.builds(GradientSize, dtype=st.sampled_from(["float32", "float64"]), bytes=st.integers(0, 20_000)), max_size=40
)


@st.composite
def ordered_sizes(draw: st.DrawFn) -> tuple[list[GradientSize], list[int]]:
    sizes = draw(SIZES)
    return sizes, draw(st.permutations(range(len(sizes))))


@given(ordered_sizes(), st.integers(1, 100_000))
def test_every_gradient_is_in_one_group_of_its_dtype(given: tuple[list[GradientSize], list[int]], limit: int) -> None:
    sizes, order = given
    groups = plan_groups(sizes, order, group_bytes=limit)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    for group in groups:
        assert len({sizes[index].dtype for index in group}) == 1


@given(ordered_sizes(), st.integers(1, 100_000))
def test_a_group_ends_as_soon_as_it_is_full(given: tuple[list[GradientSize], list[int]], limit: int) -> None:
    sizes, order = given
    for group in plan_groups(sizes, order, group_bytes=limit):
        assert sum(sizes[index].bytes for index in group[:-1]) < limit, "a gradient that fills a group is its last"


@given(ordered_sizes(), st.integers(1, 100_000))
def test_groups_follow_the_order(given: tuple[list[GradientSize], list[int]], limit: int) -> None:
    sizes, order = given
    place = {index: number for number, index in enumerate(order)}
    for group in plan_groups(sizes, order, group_bytes=limit):
        places = [place[index] for index in group]
        assert places == sorted(places)
    alike = [GradientSize("float32", size.bytes) for size in sizes]
    assert [index for group in plan_groups(alike, order, group_bytes=limit) for index in group] == order


def test_the_first_group_of_several_is_small_so_that_bytes_leave_early() -> None:
    sizes = [GradientSize("float32", 100)] * 10
    assert plan_groups(sizes, first_order(10), group_bytes=400) == ((9,), (8, 7, 6, 5), (4, 3, 2, 1), (0,))


def test_what_fits_into_one_group_is_one() -> None:
    sizes = [GradientSize("float32", 100)] * 4
    assert plan_groups(sizes, first_order(4), group_bytes=400) == ((3, 2, 1, 0),)


@given(st.integers(0, 30).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, max(0, n - 1))))))
def test_an_order_that_was_seen_is_completed_by_what_did_not_come(case: tuple[int, list[int]]) -> None:
    count, seen = case
    seen = [index for index in seen if index < count]
    order = completed(seen, count)
    assert sorted(order) == list(range(count))
    came = list(dict.fromkeys(seen))
    assert list(order[: len(came)]) == came
    assert list(order[len(came) :]) == sorted(order[len(came) :], reverse=True)


@given(st.integers(0, 10**10), st.integers(1, 10**9), st.integers(0, 10**9))
def test_groups_over_links_are_many_but_neither_too_small_nor_above_the_setting(
    total: int, most: int, least: int
) -> None:
    size = group_size(total, most=most, least=least)
    if not least:
        assert size == most
    else:
        assert min(most, least) <= size <= most
        assert size in (most, least) or total // size >= GROUPS_OVER_LINKS
