"""The record of events has few lines about steps, and each has the totals so far."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shoal.events import Advised, GenerationFormed, JobEnded, JobStarted, LoopStarted, Record, StepsApplied
from shoal.membership.record.thinning import INTERVAL, Thinning
from shoal.values import TimeShares

ENDED = JobEnded(outcome="finished", exit_code=0, reason="", seconds=1.0)
FORMED = GenerationFormed(generation=2, workers=(0,), schedule="auto", codec="identity", reason="worker 1 is gone")
STARTED = JobStarted(
    script="s", arguments=(), workers=1, strategy="all-reduce", schedule="auto", codec="identity", seed=0
)
ADVISED = Advised(worker=0, text="by the way")


def steps(worker: int, step: int, *, samples: int = 8, **values: float) -> StepsApplied:
    """Totals after so many steps of 0.75 seconds."""
    shares = TimeShares(compute=0.5 * step, checkpoint=0.25 * step)
    return StepsApplied(
        worker=worker, generation=1, step=step, epoch=0, samples=samples, seconds=0.75 * step, shares=shares,
        bytes_sent=3 * step, bytes_shared=2 * step, values=dict(values), value_samples=8,
    )  # fmt: skip


def loop(first_epoch: int) -> LoopStarted:
    return LoopStarted(
        loop=1, epochs=2, steps_per_epoch=9, global_batch=1, samples_per_epoch=9, first_epoch=first_epoch
    )


def test_of_a_workers_reports_the_newest_in_five_seconds_is_written() -> None:
    thinning = Thinning()
    written = [thinning.take(Record(float(time), steps(0, time + 1, samples=8 * (time + 1)))) for time in range(8)]
    assert [len(records) for records in written] == [1, 0, 0, 0, 0, 1, 0, 0]
    (record,) = written[5]
    assert record == Record(5.0, steps(0, 6, samples=48))


def test_a_young_job_is_written_down_more_often() -> None:
    """So that a crash of everything takes only a part of the totals with it."""
    thinning = Thinning()
    thinning.take(Record(0.0, STARTED))
    times = [tick / 10 for tick in range(1, 3000)]
    written = [record.time for tick in times for record in thinning.take(Record(tick, steps(0, round(10 * tick))))]
    assert all(later - earlier <= max(0.65, 0.07 * later) for earlier, later in itertools.pairwise(written))
    assert len(written) < 120


def test_a_report_that_comes_again_does_not_bring_old_totals_back() -> None:
    thinning = Thinning()
    thinning.take(Record(0.0, steps(0, 1)))
    thinning.take(Record(1.0, steps(0, 9, samples=72)))
    thinning.take(Record(2.0, steps(0, 5, samples=40)))
    assert thinning.rest() == [Record(2.0, steps(0, 9, samples=72))]


def test_the_last_value_of_each_name_is_kept() -> None:
    thinning = Thinning()
    thinning.take(Record(0.0, steps(0, 1)))
    thinning.take(Record(1.0, steps(0, 2, loss=2.0, norm=1.0)))
    thinning.take(Record(2.0, steps(0, 3, loss=1.0)))
    (record,) = thinning.rest()
    assert isinstance(record.event, StepsApplied)
    assert record.event.values == {"loss": 1.0, "norm": 1.0}


def test_what_is_held_back_comes_before_the_end_a_loop_and_a_generation() -> None:
    for turn in (ENDED, loop(0), FORMED):
        thinning = Thinning()
        for time, worker in enumerate((0, 1, 0, 1)):
            thinning.take(Record(float(time), steps(worker, time)))
        told = thinning.take(Record(4.0, turn))
        assert [record.event.worker for record in told[:-1] if isinstance(record.event, StepsApplied)] == [0, 1]
        assert told[-1].event is turn
        assert thinning.rest() == []


def test_other_events_are_written_at_once_and_bring_what_is_due() -> None:
    thinning = Thinning()
    thinning.take(Record(0.0, steps(0, 1)))
    thinning.take(Record(1.0, steps(0, 2)))
    assert [record.event for record in thinning.take(Record(2.0, ADVISED))] == [ADVISED]
    assert [record.event for record in thinning.take(Record(3.0, loop(1)))] == [loop(1)]
    told = thinning.take(Record(INTERVAL, ADVISED))
    assert [record.event for record in told] == [steps(0, 2), ADVISED]


def test_a_clock_that_is_set_back_does_not_silence_the_record() -> None:
    thinning = Thinning()
    thinning.take(Record(1000.0, steps(0, 1)))
    assert [record.time for record in thinning.take(Record(10.0, steps(0, 2)))] == [10.0]


happenings = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 2), st.integers(0, 9)), max_size=40)


@given(happenings)
def test_the_last_written_has_the_totals_and_nobody_is_written_too_often(
    happened: list[tuple[float, int, int]],
) -> None:
    thinning, now, written = Thinning(), 0.0, []
    totals = dict.fromkeys(range(3), 0)
    for number, (passed, worker, samples) in enumerate(happened):
        now += passed
        totals[worker] += samples
        written += thinning.take(Record(now, steps(worker, number, samples=totals[worker])))
    end = len(written)
    written += thinning.take(Record(now, ENDED))
    for worker in range(3):
        own = [record for record in written if isinstance(record.event, StepsApplied) and record.event.worker == worker]
        told = [record.event.samples for record in own if isinstance(record.event, StepsApplied)]
        assert max(told, default=0) == totals[worker]
        assert told == sorted(told)
        times = [record.time for record in own if any(record is one for one in written[:end])]
        assert all(later - earlier >= INTERVAL for earlier, later in itertools.pairwise(times))
