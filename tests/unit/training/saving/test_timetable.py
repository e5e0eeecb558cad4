"""When a checkpoint is due: every worker decides alike, nothing that was due is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.job_config import CheckpointRhythm
from shoal.training.saving.timetable import ASKED, Deferred, Due, Timetable


@given(every=st.integers(1, 9), busy=st.lists(st.booleans(), min_size=1, max_size=80))
def test_by_steps_each_one_is_made_at_once_or_as_soon_as_nobody_is_busy(every: int, busy: list[bool]) -> None:
    table, owed = Timetable(CheckpointRhythm(steps=every), now=0.0), False
    for step, some_are_busy in enumerate(busy, start=1):
        is_due = step % every == 0 or owed
        assert (table.reason(step, 0.0) is not None) == is_due
        if is_due:
            decided = table.decide(step, 0.0, some_are_busy=some_are_busy)
            assert decided == (Deferred(is_new=not owed) if some_are_busy else Due(f"every {every} steps"))
            owed = some_are_busy


@given(seconds=st.floats(0.1, 50), ticks=st.lists(st.floats(0, 20), max_size=60))
def test_by_seconds_since_the_last_one_began(seconds: float, ticks: list[float]) -> None:
    table, now, began = Timetable(CheckpointRhythm(seconds=seconds), now=0.0), 0.0, 0.0
    for step, tick in enumerate(ticks, start=1):
        now += tick
        assert (table.reason(step, now) is not None) == (now - began >= seconds)
        if table.reason(step, now) is not None:
            assert isinstance(table.decide(step, now, some_are_busy=False), Due)
            table.begins(now)
            began = now


def test_the_clock_starts_with_the_first_loop_and_not_with_later_ones() -> None:
    table = Timetable(CheckpointRhythm(seconds=10.0), now=0.0)
    table.loop_begins(100.0)
    assert table.reason(1, 105.0) is None
    table.begins(110.0)
    table.loop_begins(119.0)
    assert table.reason(2, 120.0) == "every 10 seconds"


@pytest.mark.parametrize("rhythm", [CheckpointRhythm(), CheckpointRhythm(steps=100), CheckpointRhythm(seconds=100.0)])
def test_what_the_script_asks_for_keeps_its_mark_while_it_is_put_off(rhythm: CheckpointRhythm) -> None:
    table = Timetable(rhythm, now=0.0)
    table.ask("best")
    assert table.decide(7, 1.0, some_are_busy=True) == Deferred(is_new=True)
    assert table.decide(8, 1.0, some_are_busy=True) == Deferred(is_new=False)
    assert table.decide(9, 1.0, some_are_busy=False) == Due(ASKED, "best")
    assert not table.is_asked
    assert table.take_asked() is None


@pytest.mark.parametrize(
    ("rhythm", "reason"),
    [
        (CheckpointRhythm(seconds=100.0), "every 100 seconds"),
        (CheckpointRhythm(steps=25), "every 25 steps"),  # the 25th was another worker's, which ran free
        (CheckpointRhythm(), ASKED),
    ],
)
def test_who_sees_nothing_due_makes_it_with_the_others_and_says_why_it_was(
    rhythm: CheckpointRhythm, reason: str
) -> None:
    table = Timetable(rhythm, now=0.0)
    assert table.reason(27, 99.0) is None
    assert table.decide(27, 99.0, some_are_busy=False) == Due(reason)


def test_loops_that_are_shorter_than_the_interval_do_not_put_it_off() -> None:
    table = Timetable(CheckpointRhythm(seconds=10.0), now=0.0)
    for started in range(100, 110, 3):
        table.loop_begins(float(started))
    assert table.reason(5, now=109.0) is None
    assert table.reason(6, now=110.0) is not None
