"""What a chooser takes: whole programs of all ranks, replayed, for every schedule, size and plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives import texts
from shoal.collectives.schedules.choice import Chooser
from shoal.errors import UsageError
from shoal.links.matrix import Hosts
from shoal.links.plan import FIXED, LinkPlan, SizeTable, fixed_plan
from shoal.settings.all_reduce_settings import SCHEDULES
from support.collectives import ranks_in, replay

FLAT = ("ring", "tree", "double-tree", "halving-doubling", "chain")
byte_sizes = some.sampled_from([0, 1, 100_000, 600_000, 5_000_000])


@some.composite
def plans(draw: some.DrawFn) -> tuple[int, LinkPlan]:
    """A number of ranks and a plan that may have any order, any hosts and any tables."""
    size = draw(some.integers(1, 12))
    order = tuple(draw(some.permutations(range(size)))) if draw(some.booleans()) else ()
    count = draw(some.integers(1, size))
    shuffled = draw(some.permutations(range(size)))
    hosts: Hosts = tuple(tuple(shuffled[number::count]) for number in range(count))
    between = LinkPlan(_table(draw, FLAT), FIXED.broadcast, order=tuple(draw(some.permutations(range(count)))))
    names = (*FLAT, "hierarchical")
    table, broadcast = _table(draw, names), _table(draw, ("ring", "tree", "hierarchical"))
    return size, LinkPlan(table, broadcast, order, draw(some.sampled_from([(), hosts])), between)


def _table(draw: some.DrawFn, names: tuple[str, ...]) -> SizeTable:
    return SizeTable((0, 500_000), (draw(some.sampled_from(names)), draw(some.sampled_from(names))))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_operation_is_whole_under_any_plan(schedule: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(plans(), byte_sizes, some.data())
    def check(given_plan: tuple[int, LinkPlan], size: int, data: some.DataObject) -> None:
        ranks, plan = given_plan
        if not plan.hosts:
            plan = LinkPlan(plan.all_reduce, plan.broadcast, plan.order)
        choosers = [Chooser(schedule, ranks, rank, plan) for rank in range(ranks)]
        summed = replay([chooser.all_reduce(size) for chooser in choosers])
        assert len({repr(own) for own in summed}) == 1
        assert all(ranks_in(block) == list(range(ranks)) for block in summed[0])
        source = data.draw(some.integers(0, ranks - 1))
        copied = replay([chooser.broadcast(size, source) for chooser in choosers])
        assert all(set(own) == {source} for own in copied)
        for rank, own in enumerate(replay([chooser.reduce_scatter() for chooser in choosers])):
            assert ranks_in(own[rank]) == list(range(ranks))
        for own in replay([chooser.all_gather() for chooser in choosers]):
            assert own == list(range(ranks))

    check()


def test_without_a_plan_small_tensors_take_a_tree_and_large_ones_a_ring() -> None:
    chooser = Chooser("auto", 5, 2)
    assert chooser.all_reduce(512 * 1024) == Chooser("tree", 5, 2).all_reduce(512 * 1024)
    assert chooser.all_reduce(512 * 1024 + 1) == Chooser("ring", 5, 2).all_reduce(512 * 1024 + 1)


def test_a_forced_schedule_is_taken_whatever_the_plan_says() -> None:
    plan = LinkPlan(SizeTable((0,), ("ring",)), SizeTable((0,), ("ring",)))
    for schedule in FLAT:
        assert Chooser(schedule, 6, 1, plan).all_reduce(10**6) == Chooser(schedule, 6, 1).all_reduce(10**6)


def test_hierarchical_cuts_finely_inside_hosts() -> None:
    hosts = ((0, 1, 2), (3, 4, 5))
    program = Chooser("hierarchical", 6, 1, fixed_plan(hosts)).all_reduce(8 * 1024 * 1024)
    assert program.segments >= 16  # of half a megabyte, although the ring between two hosts has two


def test_a_schedule_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=texts.no_schedule("star", SCHEDULES)):
        Chooser("star", 2, 0)
