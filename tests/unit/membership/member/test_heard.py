"""What a worker makes of its coordinator's messages, in any order that connections and restarts can produce."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.membership.member.heard import SETTLED_KEPT, Heard
from shoal.wire.messages import Briefing, CheckpointSettled, Expelled, Formed, RegroupWish, Welcome
from support.fake_coordinator import generation

ME = 0
NUMBERS = some.integers(1, 6)
GENERATIONS = some.builds(lambda number, mine: generation(number, *([ME] if mine else []), 1), NUMBERS, some.booleans())
NEWS = some.one_of(
    some.builds(lambda formed: Formed(generation=formed), GENERATIONS),
    some.builds(lambda number: Expelled(generation=number, reason="out"), NUMBERS),
    some.builds(lambda number: RegroupWish(generation=number, reason="in"), NUMBERS),
    some.builds(
        lambda formed, mine: Welcome(
            config="", heartbeat=1.0, generation=formed, is_member=mine and formed.rank_of(ME) is not None
        ),
        GENERATIONS,
        some.booleans(),
    ),
)


@given(some.lists(NEWS, max_size=15))
def test_numbers_never_go_back_and_whoever_is_out_is_told_why(news: list[object]) -> None:
    heard = Heard(ME)
    for message in news:
        before, was_member = heard.number, heard.is_member
        take_in = heard.welcomed_back if isinstance(message, Welcome) else heard.take_in
        interruption = take_in(message)  # type: ignore[arg-type]  any message
        assert heard.number >= before
        if was_member and (heard.number > before or not heard.is_member):
            assert interruption is not None
            assert interruption.below is not None
            assert interruption.below > before
            assert heard.interruption(before) is not None
        if heard.is_member:
            assert heard.interruption(heard.number) is None
        else:
            assert heard.regroup_wish is None


def test_a_wish_from_before_the_current_generation_is_past() -> None:
    heard = Heard(ME)
    heard.take_in(Formed(generation=generation(3, ME, 1)))
    heard.take_in(RegroupWish(generation=2, reason="late"))
    assert heard.regroup_wish is None
    heard.take_in(RegroupWish(generation=3, reason="worker 4 waits"))
    assert heard.regroup_wish == "worker 4 waits"


def test_a_briefing_from_before_the_current_generation_is_past() -> None:
    heard = Heard(ME)
    briefing = Briefing(generation=generation(3, 1), first=0, calls=())
    heard.take_in(briefing)
    assert heard.briefing == briefing
    heard.take_in(Formed(generation=generation(4, ME, 1)))
    assert heard.briefing is None


def test_only_the_newest_outcomes_of_checkpoints_are_kept() -> None:
    heard = Heard(ME)
    for number in range(SETTLED_KEPT + 10):
        heard.take_in(CheckpointSettled(checkpoint=str(number), published=True))
    assert len(heard.settled) == SETTLED_KEPT
    assert str(SETTLED_KEPT + 9) in heard.settled
