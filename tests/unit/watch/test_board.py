"""Events reduced to what people see."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.values import TimeShares
from shoal.watch.board import Board
from shoal.watch.wording import progress_parts

LOOP = events.LoopStarted(loop=0, epochs=2, steps_per_epoch=10, global_batch=20, samples_per_epoch=200)


def applied(worker: int = 0, step: int = 1, **changes: object) -> events.StepsApplied:
    fields = {
        "generation": 1,
        "epoch": 0,
        "samples": 10,
        "seconds": 1.0,
        "shares": TimeShares(compute=0.5, waiting=0.5),
        "bytes_sent": 8,
        "values": {},
    }
    return events.StepsApplied(worker=worker, step=step, **{**fields, **changes})  # type: ignore[arg-type]  fields of several types


def board(*happened: events.Event) -> Board:
    made = Board()
    for time, event in enumerate(happened):
        made = made.apply(event, float(time))
    return made


def test_loss_is_the_mean_over_samples_of_all_workers() -> None:
    made = board(
        applied(0, value_samples=30, values={"loss": 1.0}),
        applied(1, value_samples=10, values={"loss": 5.0, "norm": 7.0}),
    )
    assert made.values == {"loss": 2.0, "norm": 7.0}


def test_only_the_last_value_of_a_worker_counts() -> None:
    made = board(applied(0, values={"loss": 9.0}), applied(0, step=2, values={"loss": 1.0}))
    assert made.values == {"loss": 1.0}


def test_rates_of_workers_add_up() -> None:
    made = board(applied(0, samples=30), applied(1, samples=10, seconds=2.0))
    assert made.samples_per_second == pytest.approx(35.0)
    assert made.mean_samples_per_second == pytest.approx(20.0)


def test_rate_follows_a_change_of_speed() -> None:
    fast = [applied(samples=100 * report, seconds=1.0 * report) for report in range(1, 11)]
    slow = [applied(samples=1000 + 10 * report, seconds=10.0 + report) for report in range(1, 21)]
    made = board(*fast, *slow)
    assert made.samples_per_second == pytest.approx(10.0, rel=0.05)


def test_a_report_that_is_missing_or_comes_again_changes_no_total() -> None:
    reports = [
        applied(samples=10 * report, seconds=1.0 * report, bytes_sent=3 * report, step=report) for report in range(1, 9)
    ]
    [whole] = board(*reports).workers.values()
    [patchy] = board(*reports[:2], *reports[5:], *reports[1:3]).workers.values()
    for state in (whole, patchy):
        assert (state.samples, state.seconds, state.bytes_sent, state.step) == (80, 8.0, 24, 8)


def test_time_left_comes_from_the_pace_of_this_loop() -> None:
    made = board(LOOP, applied(step=0), applied(step=0), applied(step=0), applied(step=5))
    assert (made.done, made.step) == (5, 5)
    assert made.seconds_left == pytest.approx(4.0 / 5 * 15)


def test_second_loop_counts_from_where_it_began() -> None:
    made = board(LOOP, applied(step=20), msgspec.structs.replace(LOOP, loop=1), applied(step=25))
    assert (made.step, made.done) == (25, 5)


def test_epochs_of_a_nested_loop_are_one_loop() -> None:
    second = events.LoopStarted(
        loop=1, epochs=2, steps_per_epoch=10, global_batch=20, samples_per_epoch=200, first_epoch=1
    )
    made = board(LOOP, applied(step=10), second, applied(step=15, epoch=1))
    assert (made.done, made.epoch) == (15, 1)
    assert made.loop is not None
    assert made.loop.steps == 20
    assert made.seconds_left == pytest.approx(3.0 / 15 * 5)


def test_limit_of_steps_ends_a_stream() -> None:
    stream = events.LoopStarted(loop=0, epochs=1, steps_per_epoch=None, global_batch=2, samples_per_epoch=None, steps=6)
    assert board(stream, applied(step=3)).seconds_left == pytest.approx(1.0)


def test_stream_of_unknown_length_has_no_time_left() -> None:
    stream = events.LoopStarted(loop=0, epochs=1, steps_per_epoch=None, global_batch=2, samples_per_epoch=None)
    assert board(stream, applied(step=5)).seconds_left is None
    assert board(applied(step=5)).seconds_left is None


def test_void_step_counts_once_however_many_workers_report_it() -> None:
    void = [
        events.StepVoided(worker=worker, generation=1, step=3, operation="all-reduce", reason="") for worker in range(3)
    ]
    assert len(board(*void).voided) == 1


RESUMED = events.Resumed(checkpoint="step-00000400-g1", step=400, workers=4, reason="the newest that is whole")


def loop_of(loop: int, first_epoch: int) -> events.LoopStarted:
    return events.LoopStarted(
        loop=loop, epochs=5, steps_per_epoch=100, global_batch=20, samples_per_epoch=2000, first_epoch=first_epoch
    )


@pytest.mark.parametrize("happened", [(RESUMED, loop_of(1, 0)), (loop_of(1, 0), RESUMED), (RESUMED, loop_of(5, 4))])
def test_a_resumed_job_goes_on_where_it_was_and_not_at_an_absurd_pace(happened: tuple[events.Event, ...]) -> None:
    made = board(*happened)
    assert (made.step, made.done, made.seconds_left) == (400, 400, None)
    made = made.apply(applied(step=410, epoch=4), 11.0)
    assert (made.step, made.done) == (410, 410)
    assert made.loop is not None
    assert made.seconds_left == pytest.approx((11.0 - 1.0) / 10 * 90), "ten steps took it ten seconds"
    assert made.samples_per_second == pytest.approx(10.0)


def test_a_later_loop_of_a_resumed_job_counts_from_its_own_beginning() -> None:
    made = board(RESUMED, loop_of(1, 0), applied(step=500), loop_of(2, 0), applied(step=510))
    assert (made.step, made.done) == (510, 10)


def test_a_record_that_goes_on_after_a_resume_shows_the_job_as_it_is_now() -> None:
    started = events.JobStarted(
        script="train.py", arguments=(), workers=2, strategy="all-reduce", schedule="auto", codec="identity", seed=0
    )
    ended = events.JobEnded(outcome="failed", exit_code=3, reason="killed", seconds=9.0)
    lost = events.CheckpointLost(checkpoint="step-00000450-g1", step=450, worker=0, reason="disk full")
    made = board(started, LOOP, applied(step=460), lost, ended, started, RESUMED)
    assert (made.step, made.ended, made.lost, made.loop) == (400, None, frozenset(), None)


def formed(generation: int, *workers: int) -> events.GenerationFormed:
    return events.GenerationFormed(generation=generation, workers=workers, schedule="ring", codec="identity", reason="")


def died(worker: int) -> events.WorkerDied:
    return events.WorkerDied(worker=worker, host="h", process=1, step=1, operation="all-reduce", reason="killed")


def test_only_members_count_in_the_present_rate_and_values() -> None:
    made = board(
        formed(1, 0, 1), applied(0, samples=30, values={"loss": 1.0}), applied(1, values={"loss": 9.0}),
        died(1), formed(2, 0), applied(7, values={"loss": 9.0}),
    )  # fmt: skip
    assert made.samples_per_second == pytest.approx(30.0)
    assert made.values == {"loss": 1.0}
    assert sum(state.samples for state in made.workers.values()) == 50, "what the dead one did still counts"


def test_lost_workers_leave_the_sight_after_a_moment_and_newcomers_come_into_it() -> None:
    made = board(formed(1, 0, 1), applied(0), applied(1), died(1))
    joined = events.WorkerJoined(worker=9, host="h", process=1, address="")
    made = made.apply(joined, 4.0)
    assert made.in_sight == [0, 1, 9]
    assert made.apply(formed(2, 0, 9), 30.0).in_sight == [0, 9]
    back = events.WorkerJoined(worker=1, host="h", process=1, address="")
    assert made.apply(back, 30.0).in_sight == [0, 1, 9]


def equipped(worker: int, node: str) -> events.WorkerEquipped:
    return events.WorkerEquipped(
        worker=worker, host="h", system="", processor="", cores=1, memory=0, gpu="", python="", torch="", shoal="",
        node=node,
    )  # fmt: skip


def test_the_line_of_a_job_on_several_machines_says_how_many_there_are_now() -> None:
    joined = [events.WorkerJoined(worker=worker, host="h", process=1, address="") for worker in range(3)]
    made = board(*joined, formed(1, 0, 1, 2), applied(0))
    assert "machines" not in " ".join(progress_parts(made))
    for worker, node in enumerate(("node1", "node2", "node2")):
        made = made.apply(equipped(worker, node), 9.0)
    assert "3 workers on 2 machines" in progress_parts(made)
    assert "machines" not in " ".join(progress_parts(made.apply(formed(2, 1, 2), 9.0))), "both are on node2"


def test_mean_rate_is_right_when_all_workers_were_replaced() -> None:
    first = [applied(n, samples=100, seconds=10.0) for n in (0, 1)]
    second = [applied(n, samples=100, seconds=10.0) for n in (2, 3)]
    made = board(formed(1, 0, 1), *first, died(0), died(1), formed(2, 2, 3), *second)
    assert made.mean_samples_per_second == pytest.approx(20.0)
    grown = board(
        formed(1, 0),
        applied(0, samples=100, seconds=10.0),
        formed(2, 0, 1),
        applied(0, samples=200, seconds=20.0),
        applied(1, samples=100, seconds=10.0),
    )
    assert grown.mean_samples_per_second == pytest.approx(300 / 20)


def test_a_job_that_lost_everybody_goes_back_to_its_checkpoint_and_began_where_it_began() -> None:
    loop = events.LoopStarted(loop=1, epochs=5, steps_per_epoch=100, global_batch=20, samples_per_epoch=2000)
    made = board(formed(1, 0), loop, applied(step=450), died(0), formed(2, 1), loop, RESUMED)
    assert (made.step, made.done, made.first_step) == (400, 400, 0)
    made = made.apply(applied(0, step=452, generation=1), 7.0)
    assert made.step == 400, "late news of what is void"
    assert made.apply(applied(1, step=401, generation=2), 8.0).step == 401


def test_another_batch_changes_how_many_steps_are_left() -> None:
    chosen = events.BatchChosen(generation=2, workers=1, global_batch=10, worker_batch=10, lr_factor=1.0, reason="")
    made = board(LOOP, applied(step=10), chosen)
    assert made.loop is not None
    assert made.loop.steps == 10 + 20
    limited = board(msgspec.structs.replace(LOOP, steps=15), applied(step=10), chosen)
    assert limited.loop is not None
    assert limited.loop.steps == 15, "the script's own limit stays"


everything = st.one_of(
    st.builds(lambda n, who: formed(n, *sorted(who)), st.integers(1, 4), st.sets(st.integers(0, 5))),
    st.builds(died, st.integers(0, 5)),
    st.builds(
        lambda batch: events.BatchChosen(
            generation=1, workers=1, global_batch=batch, worker_batch=1, lr_factor=1, reason=""
        ),
        st.integers(0, 50),
    ),
    st.builds(
        applied,
        worker=st.integers(0, 3),
        step=st.integers(0, 100),
        samples=st.integers(0, 1000),
        seconds=st.floats(0, 100),
        values=st.dictionaries(st.sampled_from(["loss", "norm"]), st.floats(-1e6, 1e6)),
    ),
    st.just(LOOP),
    st.just(RESUMED),
    st.builds(
        events.EpochEnded, epoch=st.integers(0, 3), step=st.integers(0, 9), samples=st.just(1), seconds=st.just(1.0)
    ),
)


@given(st.lists(st.tuples(everything, st.floats(0, 1000)), max_size=20))
def test_any_order_of_events_gives_sensible_figures(happened: list[tuple[events.Event, float]]) -> None:
    made = Board()
    for event, time in happened:
        made = made.apply(event, time)
    assert made.samples_per_second >= 0
    assert made.done >= 0
    assert made.seconds_left is None or made.seconds_left >= 0
    reports = [event for event, _ in happened if isinstance(event, events.StepsApplied)]
    for worker, state in made.workers.items():
        assert state.seconds == max(event.seconds for event in reports if event.worker == worker)


def test_waiting_is_over_when_training_goes_on_with_the_same_members() -> None:
    waits = events.Waiting(workers=0, needed=2, reason="no member of the generation was heard from for 7.0 s")
    resumed = events.ProgressResumed(
        generation=1, step=21, time=30.0, seconds=12.0, redone=0, samples_redone=0, reason="nobody was heard of"
    )
    assert board(formed(1, 0, 1), waits).waiting == waits
    assert board(formed(1, 0, 1), waits, resumed).waiting is None


def test_a_job_that_begins_again_from_the_top_shows_the_step_it_is_at() -> None:
    """No checkpoint says where: the first step does."""
    back = events.ProgressResumed(
        generation=2, step=1, time=30.0, seconds=3.0, redone=35, samples_redone=350, taken_back=35, reason="all are new"
    )
    made = board(formed(1, 0, 1), LOOP, applied(step=35), formed(2, 2, 3), applied(2, step=2, generation=2), back)
    assert made.step == 2
    made = made.apply(applied(2, step=3, generation=2, seconds=2.0), 9.0)
    assert (made.step, made.taken_back) == (3, 35)
    assert made.apply(applied(0, step=36, generation=1, seconds=2.0), 9.5).step == 3, "late news of what is void"
