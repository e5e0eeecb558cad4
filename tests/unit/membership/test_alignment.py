"""Whose state all go on with, and what each takes from it: the pure rule and the way in that uses it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import PeerLost
from shoal.membership import member
from shoal.membership.alignment import Taking, align
from shoal.values import Address, Generation, Member, Standing, Unreached
from shoal.wire.messages import ExchangeBroken, Ready


def generation(number: int, workers: list[int], carriers: tuple[int, ...]) -> Generation:
    members = tuple(
        Member(rank=rank, worker=worker, host="h", process=worker, address=Address("127.0.0.1", 1))
        for rank, worker in enumerate(workers)
    )
    return Generation(
        number=number, members=members, schedule="auto", codec="identity", reason="test", carriers=carriers
    )


def at(step: int, *, held: int = 1, points: int = 2, loop: int = 1, in_loop: bool = True, digest: int = 7) -> Standing:
    return Standing(generation=held, step=step, points=points, loop=loop, in_loop=in_loop, digest=digest)


NEW = Standing(is_new=True)


def test_the_furthest_is_the_source_and_who_is_behind_loads() -> None:
    found = align([at(4), at(5, digest=8), at(4)], generation(2, [0, 1, 2], (0, 1, 2)))
    assert found.source == 1
    assert found.keepers == (1,)
    assert found.takings == (Taking.LOAD, Taking.KEEP, Taking.LOAD)


def test_a_newcomer_and_one_that_is_elsewhere_go_through_the_script() -> None:
    elsewhere = at(2, held=0, points=1, loop=0, in_loop=False)
    found = align([at(9, points=5, loop=2), NEW, elsewhere], generation(3, [0, 4, 2], (0,)))
    assert found.takings == (Taking.KEEP, Taking.PAST, Taking.RESTART)


def test_who_missed_the_end_of_a_meeting_takes_its_result() -> None:
    inside = at(9, points=4, in_loop=True)
    passed = at(9, points=5, in_loop=False)
    assert align([inside, passed], generation(2, [0, 1], (0, 1))).takings == (Taking.RESULT, Taking.KEEP)


def test_one_that_was_expelled_is_never_a_source_however_far_it_is() -> None:
    found = align([at(4), at(90)], generation(5, [0, 1], (0,)))
    assert found.source == 0
    assert found.takings[1] is Taking.LOAD


def test_a_state_of_a_later_generation_beats_more_steps_of_an_earlier_one() -> None:
    found = align([at(40, held=1), at(12, held=3)], generation(4, [0, 1], (0, 1)))
    assert found.source == 1


def test_without_a_loop_begun_or_a_carrier_all_start() -> None:
    before = at(0, points=1, loop=0, in_loop=False)
    for standings, carriers in (([before, before, NEW], (0, 1)), ([at(3), at(3), NEW], ())):
        found = align(standings, generation(2, [0, 1, 2], carriers))
        assert found.takings == (Taking.START,) * 3 and not found.needs_copy


def test_the_majority_is_right_about_parameters() -> None:
    found = align([at(4), at(4, digest=9), at(4)], generation(2, [0, 1, 2], (0, 1, 2)))
    assert found.differing == (1,)
    assert found.takings == (Taking.KEEP, Taking.LOAD, Taking.KEEP)
    assert align([at(4), at(4, digest=9)], generation(2, [0, 1], (0, 1))).is_hopeless


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    held=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    new=st.lists(st.booleans(), min_size=6, max_size=6),
    carriers=st.sets(st.integers(0, 5)),
)
def test_nobody_but_a_carrier_with_a_state_is_kept_or_copied_from(
    steps: list[int], held: list[int], new: list[bool], carriers: set[int]
) -> None:
    standings = [
        msgspec.structs.replace(at(step, held=held[rank]), is_new=new[rank], generation=0 if new[rank] else held[rank])
        for rank, step in enumerate(steps)
    ]
    found = align(standings, generation(9, list(range(len(steps))), tuple(carriers)))
    if found.source is None:
        assert set(found.takings) == {Taking.START}
        return
    for rank in found.keepers:
        assert rank in carriers and standings[rank].generation > 0
    best = max(standings[r].generation for r in range(len(steps)) if r in carriers)
    assert standings[found.source].generation == best
    for rank, taking in enumerate(found.takings):
        assert (taking is Taking.KEEP) == (rank in found.keepers)


def test_the_way_in_starts_over_when_the_group_breaks_and_forgets_what_it_held_when_left_out() -> None:
    broken = ExchangeBroken(generation=1, step=5, operation="x", peer=None, reason="y", holds=1)
    way = member.regroup(2, broken, at(5))
    assert next(way) == member.Look()
    named = Unreached(unreachable=(1,), late=(0,))
    assert way.send(named) == member.Tell(msgspec.structs.replace(broken, unreached=named))
    assert way.send(None) == member.Await(after=1)
    without = generation(2, [0, 1], (0, 1))
    assert way.send(without) == member.Tell(Ready(generation=2))
    assert way.send(None) == member.Await(after=2)
    third = generation(3, [0, 2], (0,))
    assert way.send(third) == member.Connect(third)
    assert way.throw(PeerLost("gone", peer=0)) == member.Look()
    told = way.send(Unreached())
    assert isinstance(told, member.Tell) and isinstance(told.notice, ExchangeBroken)
    assert (told.notice.generation, told.notice.peer, told.notice.holds) == (3, 0, 0)
    assert told.notice.operation == "connecting"
    way.send(None)
    fourth = generation(4, [0, 2], (0,))
    assert way.send(fourth) == member.Connect(fourth)
    compare = way.send(None)
    assert isinstance(compare, member.Compare) and compare.standing.generation == 0
    copy = way.send((at(8), at(5, held=0)))
    assert isinstance(copy, member.Copy) and copy.alignment.takings == (Taking.KEEP, Taking.LOAD)
    try:
        way.send(None)
    except StopIteration as done:
        assert done.value.generation == fourth
    else:
        raise AssertionError("it should be in")


def test_a_newcomer_that_was_left_out_has_still_to_compare_its_calls() -> None:
    way = member.regroup(2, Ready(generation=1, unreachable=(1,), seen=3, is_ahead=True), NEW)
    next(way)
    assert way.send(None) == member.Await(after=1)
    assert way.send(generation(2, [0, 1], (0, 1))) == member.Tell(Ready(generation=2, seen=3, is_ahead=True))
