"""Which schedule a plan takes for which size, and that it says why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.links.matrix import Hosts, Link, LinkMatrix, uniform
from shoal.links.measure import told
from shoal.links.plan import FIXED, SIZES, LinkPlan, choose, fixed_plan, make_plan
from support.examples import scaled

LAN, WAN = Link(1e-4, 8e-9), Link(2e-2, 1e-7)
links = some.builds(Link, some.floats(1e-6, 1e-1), some.floats(1e-11, 1e-6))


@settings(max_examples=scaled(50), deadline=None)
@given(some.integers(2, 12), links)
def test_the_table_takes_what_the_model_takes_but_for_small_gains(ranks: int, link: Link) -> None:
    matrix = uniform(ranks, link)
    plan = make_plan(matrix)
    assert plan.all_reduce.least[0] == 0
    assert sorted(plan.all_reduce.least) == list(plan.all_reduce.least)
    for size in SIZES:
        choice = choose(size, matrix)
        assert choice.seconds[plan.all_reduce.at(size)] * 0.95 <= choice.seconds[choice.schedule]
        assert choice.schedule in choice.reason
    for schedule in plan.all_reduce.schedules:  # a figure from its own range, where it is the fastest or nearly so
        assert f": {schedule} " in plan.reason or f", {schedule} " in plan.reason


@settings(max_examples=scaled(50), deadline=None)
@given(some.integers(2, 12), links)
def test_an_exchange_is_worth_its_rounds_from_the_size_on_at_which_bytes_take_most_of_the_time(
    ranks: int, link: Link
) -> None:
    matrix = uniform(ranks, link)
    least = make_plan(matrix).least_bytes
    rounds = min(choose(SIZES[0], matrix).seconds.values())
    assert least == SIZES[-1] or rounds <= 0.25 * min(choose(least, matrix).seconds.values())
    assert least == SIZES[0] or rounds > 0.25 * min(choose(least // 2, matrix).seconds.values())


def test_links_between_hosts_decide_what_is_worth_an_exchange() -> None:
    hosts: Hosts = ((0, 1), (2, 3))
    matrix = uniform(4, LAN)
    assert make_plan(matrix, hosts).least_bytes == make_plan(uniform(2, LAN)).least_bytes
    assert make_plan(uniform(2, WAN)).least_bytes > make_plan(uniform(2, LAN)).least_bytes > 0
    assert fixed_plan(hosts).least_bytes == 0  # nothing was measured


def test_sizes_beyond_the_table_have_a_schedule() -> None:
    plan = make_plan(uniform(5, LAN))
    assert plan.all_reduce.at(0) == plan.all_reduce.schedules[0]
    assert plan.all_reduce.at(10**12) == plan.all_reduce.schedules[-1]


def test_many_rounds_are_avoided_for_small_tensors_and_many_bytes_for_large_ones() -> None:
    plan = make_plan(uniform(16, LAN))
    assert plan.all_reduce.at(64) != "ring"
    assert plan.all_reduce.at(1 << 30) in ("ring", "halving-doubling")


def test_hosts_are_taken_as_one_where_links_between_them_are_slow() -> None:
    hosts: Hosts = tuple(tuple(range(4 * number, 4 * number + 4)) for number in range(4))
    rows = tuple(tuple(Link(1e-5, 1e-10) if a // 4 == b // 4 else WAN for b in range(16)) for a in range(16))
    plan = make_plan(LinkMatrix(rows), hosts)
    assert plan.all_reduce.at(4096) == "hierarchical"
    assert plan.hosts == hosts
    assert plan.between is not None and "hierarchical" not in plan.between.all_reduce.schedules


@pytest.mark.parametrize("hosts", [(), ((0, 1, 2, 3),), ((0,), (1,), (2,), (3,))])
def test_without_two_levels_there_is_nothing_hierarchical(hosts: Hosts) -> None:
    plan = make_plan(uniform(4, LAN), hosts)
    assert plan.between is None and plan.hosts == ()
    assert not {"hierarchical"} & {*plan.all_reduce.schedules, *plan.broadcast.schedules}


def test_the_event_says_what_is_taken_from_which_size_on_and_why() -> None:
    rows = tuple(tuple(Link(1e-5, 1e-10) if (a - b) % 4 == 0 else LAN for b in range(8)) for a in range(8))
    plan = make_plan(LinkMatrix(rows, seconds=0.25))
    event = told(plan, 3, "auto")
    assert (event.generation, event.setting, event.seconds) == (3, "auto", 0.25)
    assert event.ranges == tuple(zip(plan.all_reduce.least, plan.all_reduce.schedules, strict=True))
    assert event.order == plan.order
    for words in ("8 ranks", "latency 10 to 100 us", "0.125 to 10 GB/s", plan.all_reduce.schedules[0], " ms"):
        assert words in event.reason
    forced = told(FIXED, 4, "tree")
    assert forced.ranges == ((0, "tree"),)
    assert forced.reason.startswith("asked for with --schedule tree; no link was measured")
    measured = told(plan, 5, "ring")
    assert (measured.ranges, measured.order) == (((0, "ring"),), plan.order)
    assert measured.reason == f"asked for with --schedule ring; auto would take {plan.reason}"


def test_the_event_says_what_goes_through_memory() -> None:
    hosts: Hosts = ((0, 1), (2, 3), (4, 5))
    plan = make_plan(uniform(6, LAN), hosts)
    event = told(plan, 1, "auto", hosts)
    assert event.ranges == ((0, "hierarchical"),)
    assert plan.between is not None
    assert event.reason == f"memory inside each of 3 machines, between them {plan.between.reason}"
    alone = told(FIXED, 1, "auto", ((0, 1, 2),))
    assert alone.ranges == ((0, "memory"),)
    assert alone.reason.startswith("all 3 ranks share one machine's memory; ")


def test_the_order_of_a_ring_is_told_where_it_is_not_that_of_the_ranks() -> None:
    hosts = ((0, 2, 4, 6), (1, 3, 5, 7))
    rows = tuple(tuple(LAN if (a - b) % 2 else Link(1e-5, 1e-10) for b in range(8)) for a in range(8))
    plan = make_plan(LinkMatrix(rows))
    assert plan.order[0] == 0 and {frozenset(plan.order[:4]), frozenset(plan.order[4:])} != {frozenset(hosts[0])}
    if "ring" in plan.all_reduce.schedules:
        assert " ".join(map(str, plan.order)) in plan.reason


def test_a_fixed_plan_knows_nothing_of_links() -> None:
    assert fixed_plan() is FIXED
    hosts = ((0, 1), (2,))
    plan = fixed_plan(hosts)
    assert (plan.all_reduce, plan.order, plan.hosts, plan.between) == (FIXED.all_reduce, (), hosts, FIXED)
    assert make_plan(uniform(1, LAN)) == FIXED
    event = told(FIXED, 1, "auto")
    assert event.ranges == ((0, "tree"), (512 * 1024 + 1, "ring"))
    assert "fixed" in event.reason and event.seconds == 0


@given(
    matrix=some.integers(4, 9).flatmap(
        lambda n: some.lists(some.lists(links, min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
@settings(max_examples=30, deadline=None)
def test_the_same_links_make_the_same_plan(matrix: list[list[Link]]) -> None:
    rows = tuple(map(tuple, matrix))
    made: list[LinkPlan] = [make_plan(LinkMatrix(rows)) for _ in range(2)]
    assert made[0] == made[1]
