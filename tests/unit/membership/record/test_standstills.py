"""When training stood still and what was done again, in the cases that were told wrongly once."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import events
from shoal.membership.record.standstills import Standstills
from shoal.steps import MetricLine

LOOP = events.LoopStarted(loop=1, epochs=1, steps_per_epoch=None, global_batch=8, samples_per_epoch=None)
END = events.JobEnded(outcome="finished", exit_code=0, reason="", seconds=0.0)
Told = tuple[float, events.Event] | MetricLine


def line(step: int, time: float, generation: int = 1, seconds: float = 0.1) -> MetricLine:
    return MetricLine(step=step, time=time, generation=generation, seconds=seconds, samples=8)


def steady(first: int, count: int, start: float, generation: int = 1) -> list[MetricLine]:
    return [line(first + n, start + 0.1 * (n + 1), generation) for n in range(count)]


def formed(generation: int, reason: str = "") -> events.GenerationFormed:
    return events.GenerationFormed(
        generation=generation, workers=(0, 1), schedule="", codec="", reason=reason or f"why {generation}"
    )


def died(worker: int) -> events.WorkerDied:
    return events.WorkerDied(worker=worker, host="", process=1, step=1, operation="", reason="killed")


def void(worker: int, generation: int, step: int, **changes: Any) -> events.StepVoided:
    return events.StepVoided(
        worker=worker, generation=generation, step=step, operation="", reason="", samples=8, **changes
    )


def told(*happened: Told) -> list[events.ProgressResumed]:
    made = Standstills()
    found: list[events.ProgressResumed] = []
    for each in ((0.0, formed(1)), (0.1, LOOP), *happened):
        found += made.apply(each) if isinstance(each, MetricLine) else made.observe(each[1], each[0])
    return found


def test_a_job_in_which_nothing_happens_never_stands_still() -> None:
    assert told(*steady(1, 30, 1.0), (5.0, END)) == []


def test_several_regroupings_in_a_row_are_one_standstill_from_the_last_step_to_the_next() -> None:
    """Said by a worker that had come in on the way, it was 0.03 s."""
    [resumed] = told(
        *steady(1, 20, 1.0), (3.1, died(0)), (3.2, formed(2)), (12.0, died(1)), (12.1, formed(3)), (32.0, formed(4)),
        line(21, 32.8, 4, seconds=0.03),
    )  # fmt: skip
    assert (resumed.seconds, resumed.time, resumed.generation) == (pytest.approx(29.8), 32.8, 4)
    assert resumed.reason == "why 2"
    assert (resumed.redone, resumed.taken_back) == (0, 0)


def test_steps_since_the_checkpoint_are_taken_back_when_all_servers_are_lost() -> None:
    """Said by the workers, it was the tries that were void."""
    [resumed] = told(
        *steady(1, 81, 1.0), (9.2, void(0, 1, 81)), (9.2, void(1, 1, 81)), (9.3, formed(2)), (9.9, void(0, 2, 81)),
        (9.9, void(1, 2, 81)), (10.0, formed(3)), (10.1, LOOP), *steady(21, 80, 10.9, generation=3),
    )  # fmt: skip
    assert (resumed.taken_back, resumed.samples_taken_back) == (61, 61 * 8)
    assert (resumed.redone, resumed.samples_redone) == (61 + 2, 63 * 8)
    assert resumed.seconds == pytest.approx(11.0 - 9.1)


def test_updates_that_only_the_servers_know_of_are_taken_back_too() -> None:
    """All workers were killed before they could report their last ones."""
    loop = events.LoopStarted(
        loop=1, epochs=1, steps_per_epoch=None, global_batch=8, samples_per_epoch=None, replaced=40
    )
    known = steady(1, 37, 1.0)
    late = (*known[:30], (4.9, died(0)), (8.0, formed(2)), (8.1, loop), *known[30:], line(23, 9.0, 2))
    for happened in ((*known, (4.9, died(0)), (8.0, formed(2)), (8.1, loop), line(23, 9.0, 2)), late):
        [resumed] = told(*happened)
        assert (resumed.taken_back, resumed.samples_taken_back) == (18, 18 * 8)


def test_a_job_without_a_checkpoint_begins_from_the_top() -> None:
    [resumed] = told(*steady(1, 35, 1.0), (4.6, died(0)), (7.0, formed(2)), (7.1, LOOP), *steady(1, 50, 7.5, 2))
    assert (resumed.step, resumed.taken_back, resumed.seconds) == (1, 35, pytest.approx(3.1))


def test_all_workers_that_are_stopped_and_go_on_are_a_standstill() -> None:
    waits = events.Waiting(workers=0, needed=1, reason="no member was heard from for 7.0 s")
    [resumed] = told(*steady(1, 20, 1.0), (10.0, waits), (12.0, waits), line(21, 15.0), *steady(22, 20, 15.0))
    assert (resumed.seconds, resumed.generation, resumed.reason) == (pytest.approx(12.0), 1, waits.reason)


def test_silence_that_stopped_nobody_costs_a_step() -> None:
    """The coordinator could not hear anybody, and training went on."""
    waits = events.Waiting(workers=0, needed=1, reason="no member was heard from for 7.0 s")
    [resumed] = told((2.45, waits), *steady(1, 20, 1.0))
    assert resumed.seconds == pytest.approx(0.1)


def test_a_silence_that_is_noticed_when_it_is_over_counts() -> None:
    """All were stopped; the first to be heard of again makes the others silent."""
    expelled = events.WorkerExpelled(worker=1, step=20, reason="silent for 6.1 s")
    before, waking = steady(1, 20, 1.0), line(21, 15.0, seconds=12.0)
    after = [(15.1, expelled), (15.2, formed(2)), line(22, 15.5, 2)]
    for happened in ([*before, waking, *after], [*before, after[0], waking, *after[1:]]):
        [resumed] = told(*happened)  # type: ignore[arg-type]  # lines and events
        assert resumed.seconds == pytest.approx(12.0 + 0.5)


def test_a_long_step_that_nobody_explains_is_no_standstill() -> None:
    assert told(*steady(1, 20, 1.0), line(21, 15.0, seconds=12.0), *steady(22, 20, 15.0), (19.0, END)) == []


def test_a_step_that_was_void_here_and_whole_elsewhere_is_not_done_again() -> None:
    [resumed] = told(*steady(1, 19, 1.0), (3.1, void(1, 1, 19)), (3.1, died(2)), line(20, 3.0), (3.2, formed(2)),
                     line(21, 3.5, 2))  # fmt: skip
    assert (resumed.redone, resumed.seconds) == (0, pytest.approx(0.5))


def test_of_workers_that_run_free_each_void_update_is_done_again() -> None:
    own = [void(worker, 1, 19, is_own=True) for worker in (0, 1)]
    [resumed] = told(*steady(1, 20, 1.0), (3.1, own[0]), (3.1, own[1]), (3.2, formed(2)), line(21, 3.5, 2))
    assert (resumed.redone, resumed.samples_redone, resumed.taken_back) == (2, 16, 0)


def test_an_evaluation_is_no_standstill_and_one_that_is_held_again_is_part_of_one() -> None:
    evaluated = events.Evaluated(step=20, samples=1, scores={})
    ended = events.LoopEnded(loop=1, step=20)
    assert told(*steady(1, 20, 1.0), (3.1, ended), (33.0, evaluated), (33.1, LOOP), *steady(21, 5, 33.1)) == []
    [resumed] = told(
        *steady(1, 20, 1.0), (3.1, ended), (30.0, died(0)), (30.2, formed(2)), (60.0, evaluated), (60.1, LOOP),
        *steady(21, 5, 60.1, 2),
    )  # fmt: skip
    assert (resumed.seconds, resumed.time) == (pytest.approx(30.0), 60.0)
    [late] = told(
        *steady(1, 20, 1.0), (3.1, ended), (33.0, LOOP), (33.5, died(0)), (33.6, formed(2)), line(21, 34.0, 2)
    )
    assert late.seconds == pytest.approx(1.0), "from the loop's beginning"


def test_what_is_over_without_another_step_is_told_at_the_end() -> None:
    ended = events.LoopEnded(loop=1, step=20)
    [resumed] = told(*steady(1, 20, 1.0), (3.1, died(0)), (3.2, formed(2)), (3.9, ended), (60.0, END))
    assert (resumed.time, resumed.seconds) == (3.9, pytest.approx(0.9))
    assert told(*steady(1, 20, 1.0), (3.1, died(0)), (3.2, formed(2)), (60.0, END)) == [], "it lasts to the end"


def test_what_is_over_outside_loops_is_told_at_once() -> None:
    made = Standstills()
    left = events.WorkerLeft(worker=0, step=0, reason="the script is done")
    noted = [
        made.observe(event, time) for time, event in ((0.0, formed(1)), (1.0, died(1)), (1.2, formed(2)), (2.0, left))
    ]
    assert [len(found) for found in noted] == [0, 0, 0, 1]
    assert (noted[-1][0].seconds, noted[-1][0].time) == (pytest.approx(1.0), 2.0)
    assert made.observe(END, 9.0) == []


def test_who_dies_before_the_first_step_holds_the_loop_up_from_its_beginning() -> None:
    made = Standstills()
    happened = ((0.0, formed(1)), (1.0, died(7)), (2.0, LOOP), (5.0, died(0)), (5.5, formed(2)))
    assert [made.observe(event, time) for time, event in happened] == [[]] * 5
    [resumed] = made.apply(line(1, 6.0, 2))
    assert resumed.seconds == pytest.approx(5.0), "from the first sign, which was before the loop"
    made = Standstills()
    for time, event in ((0.0, formed(1)), (2.0, LOOP), (5.0, died(0)), (5.5, formed(2))):
        made.observe(event, time)
    assert [resumed.seconds for resumed in made.apply(line(1, 6.0, 2))] == [pytest.approx(4.0)]


def test_a_newcomer_that_dies_on_its_way_in_is_no_standstill() -> None:
    assert told(*steady(1, 20, 1.0), (2.45, died(7)), *steady(21, 20, 3.0), (9.0, END)) == []


def test_a_loss_behind_the_loop_after_which_all_begin_from_a_checkpoint_counts_once() -> None:
    """The loop's second beginning ended one standstill, and the first step after it told the same time again."""
    first, second = told(
        *steady(1, 50, 1.0), (6.1, events.LoopEnded(loop=1, step=50)), (8.0, died(0)), (8.0, died(1)),
        (15.0, formed(2)), (15.5, LOOP), line(31, 15.7, 2),
    )  # fmt: skip
    assert first.seconds == pytest.approx(15.5 - 8.0)
    assert (second.seconds, second.taken_back) == (pytest.approx(15.7 - 15.5), 20)
