"""Whose state all go on with, and what each takes from it: the pure rule and the way in that uses it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import PeerLost
from shoal.membership.member import member
from shoal.membership.member.alignment import Taking, align
from shoal.values import THROUGH, Address, Generation, LostMember, Member, Standing, Unreached
from shoal.wire.messages import Done, ExchangeBroken, Ready


def generation(
    number: int, workers: list[int], holders: tuple[int, ...], lost: tuple[LostMember, ...] = ()
) -> Generation:
    members = tuple(
        Member(rank=rank, worker=worker, host="h", process=worker, address=Address("127.0.0.1", 1))
        for rank, worker in enumerate(workers)
    )
    return Generation(
        number=number,
        members=members,
        schedule="auto",
        codec="identity",
        reason="test",
        holders=holders,
        lost=lost,
    )


def at(step: int, *, held: int = 1, points: int = 2, loop: int = 1, in_loop: bool = True, digest: int = 7) -> Standing:
    return Standing(generation=held, step=step, points=points, loop=loop, in_loop=in_loop, digest=digest)


NEW = Standing(is_new=True)


def test_the_furthest_is_the_source_and_who_is_behind_loads() -> None:
    found = align([at(4), at(5, digest=8), at(4)], generation(2, [0, 1, 2], (0, 1, 2)))
    assert found.source == 1
    assert found.givers == (1,)
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
    for standings, holders in (([before, before, NEW], (0, 1)), ([at(3), at(3), NEW], ())):
        found = align(standings, generation(2, [0, 1, 2], holders))
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
    holders=st.sets(st.integers(0, 5)),
)
def test_nobody_but_a_carrier_with_a_state_is_kept_or_copied_from(
    steps: list[int], held: list[int], new: list[bool], holders: set[int]
) -> None:
    standings = [
        msgspec.structs.replace(at(step, held=held[rank]), is_new=new[rank], generation=0 if new[rank] else held[rank])
        for rank, step in enumerate(steps)
    ]
    found = align(standings, generation(9, list(range(len(steps))), tuple(holders)))
    if found.source is None:
        assert set(found.takings) == {Taking.START}
        return
    for rank in found.givers:
        assert rank in holders and standings[rank].generation > 0
    best = max(standings[r].generation for r in range(len(steps)) if r in holders)
    assert standings[found.source].generation == best
    for rank, taking in enumerate(found.takings):
        assert (taking is Taking.KEEP) == (rank in found.givers)


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


# Behind a loop


def behind(points: int, *, held: int = 1, step: int = 9) -> Standing:
    """In code behind loop 2, to whose end it had come after four meetings."""
    return Standing(generation=held, step=step, points=points, loop=2, in_loop=False, end_points=4, digest=7)


AT_THE_END = Standing(generation=1, step=9, points=4, loop=2, in_loop=True, digest=7)


def test_all_go_back_to_the_end_of_the_loop_if_one_was_lost_in_code_behind_it() -> None:
    """One has passed a meeting there, one has not, one is still at the end of the loop, one has just come."""
    standings = [behind(6), behind(5), AT_THE_END, NEW]
    for point in (0, 5, 6):  # it had come to the meeting that the first has passed, at most
        found = align(standings, generation(2, [1, 2, 3, 9], (1, 2, 3), (LostMember(0, 1, point),)))
        assert found.missed == (0,)
        assert found.takings == (Taking.KEEP, Taking.KEEP, Taking.KEEP, Taking.PAST)


def test_who_has_changed_its_parameters_since_cannot_bring_the_state_of_the_loop_s_end() -> None:
    changed = msgspec.structs.replace(behind(6), is_changed=True, digest=8)
    lost = (LostMember(0, 1, 5),)
    found = align([changed, behind(5), changed], generation(2, [1, 2, 3], (1, 2, 3), lost))
    assert (found.source, found.givers) == (1, (1,))
    assert found.takings == (Taking.LOAD, Taking.KEEP, Taking.LOAD)
    found = align([changed, changed], generation(2, [1, 2], (1, 2), lost))
    assert (found.takings, found.missed, found.is_hopeless) == ((Taking.START,) * 2, (0,), False)


def test_nobody_goes_back_for_one_that_had_come_to_where_the_others_are() -> None:
    for lost in (LostMember(0, 1, 7), LostMember(0, 1, THROUGH)):
        found = align([behind(6), behind(5), AT_THE_END], generation(2, [1, 2, 3], (1, 2, 3), (lost,)))
        assert found.missed == ()
        assert found.takings == (Taking.KEEP, Taking.RESULT, Taking.RESTART)


def test_losses_from_before_the_generation_that_the_source_is_of_are_settled() -> None:
    """It has heard of them on its way into that one; whoever holds an older state is not asked."""
    lost = (LostMember(0, 2, 0), LostMember(1, 3, 9))
    assert align([behind(6, held=3), behind(7, held=2)], generation(4, [2, 3], (2, 3), lost)).missed == ()
    assert align([behind(6, held=2), behind(6, held=2)], generation(4, [2, 3], (2, 3), lost)).missed == (0,)


def test_a_loss_means_nothing_to_those_who_are_in_a_loop() -> None:
    assert align([at(4), at(5)], generation(2, [1, 2], (1, 2), (LostMember(0, 1, 0),))).missed == ()


def test_one_that_is_done_waits_for_its_release_or_for_a_generation_that_needs_it() -> None:
    done = Done(generation=1, step=9, reason="the script is done")
    way = member.regroup(1, done, behind(6))
    assert next(way) == member.Finish(done)
    assert finished(way, None) is None
    way = member.regroup(1, done, behind(6))
    next(way)
    formed = generation(2, [1], (1,), (LostMember(0, 1, 5),))
    assert way.send(formed) == member.Connect(formed)
    assert way.send(None) == member.Compare(behind(6))
    entered = finished(way, (behind(6),))
    assert entered is not None
    assert entered.alignment.missed == (0,)


def finished(way: Generator[member.Effect, Any, member.Entered | None], answer: object) -> member.Entered | None:
    """What comes of it with the last answer."""
    with pytest.raises(StopIteration) as stopped:
        way.send(answer)
    value: member.Entered | None = stopped.value.value
    return value
