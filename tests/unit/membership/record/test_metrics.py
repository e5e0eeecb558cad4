"""Rows of workers become one line per step."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.events import StepsApplied
from shoal.membership.record import metrics
from shoal.membership.record.metrics import Metrics
from shoal.steps import MetricLine, StepRow
from shoal.values import TimeShares


def report(worker: int, step: int, *rows: StepRow, generation: int = 1, clock: float = 0.0) -> StepsApplied:
    """One that is sent at `clock`, when the last of its steps ended, each after the one before."""
    ended, placed = clock, []
    for each in reversed(rows):
        placed.append(msgspec.structs.replace(each, ended=ended, generation=generation))
        ended -= each.seconds
    return StepsApplied(
        worker=worker, generation=generation, step=step, epoch=0, samples=0, seconds=0.0, shares=TimeShares(),
        bytes_sent=0, values={}, rows=tuple(reversed(placed)), clock=clock,
    )  # fmt: skip


def row(step: int, *, seconds: float = 0.5, samples: int = 4, total: int = 0, **values: float | None) -> StepRow:
    return StepRow(step, 0, seconds, samples, dict(values), total, 1, 0.0)


def of(workers: int) -> Metrics:
    made = Metrics()
    assert made.regroup(range(workers)) == []
    return made


def test_values_are_means_over_samples_of_the_workers_that_logged_them() -> None:
    made = of(3)
    assert made.add(report(0, 1, row(1, samples=6, loss=1.0)), 10.0) == []
    assert made.add(report(1, 1, row(1, samples=2, seconds=0.7, loss=5.0, norm=7.0)), 10.1) == []
    lines = made.add(report(2, 1, row(1, samples=1)), 10.2)
    values: dict[str, float | None] = {"loss": 2.0, "norm": 7.0}
    assert lines == [MetricLine(step=1, time=10.0, epoch=0, generation=1, seconds=0.7, samples=9, values=values)]


def test_a_step_waits_for_every_worker_to_get_there_or_beyond() -> None:
    made = of(2)
    assert made.add(report(0, 3, row(1), row(2), row(3)), 1.0) == []
    assert [line.step for line in made.add(report(1, 2, row(2)), 1.0)] == [1, 2]
    # Worker 1 copied the state of step 3 and has no row of its own.
    assert [line.step for line in made.add(report(1, 3), 1.0)] == [3]


def test_whoever_is_not_in_the_generation_is_not_waited_for() -> None:
    made = of(2)
    made.add(report(0, 1, row(1)), 1.0)
    assert [line.step for line in made.regroup([0])] == [1]
    assert [line.step for line in made.add(report(0, 2, row(2)), 1.0)] == [2]


def test_times_go_back_from_the_arrival_of_a_report() -> None:
    lines = of(1).add(report(0, 3, row(1, seconds=9.0), row(2, seconds=0.25), row(3, seconds=0.5)), 100.0)
    assert [line.time for line in lines] == [99.25, 99.5, 100.0]


def test_a_step_that_a_worker_redid_replaces_what_it_said_of_it() -> None:
    made = of(2)
    made.add(report(0, 2, row(1, loss=1.0), row(2, loss=2.0)), 1.0)
    made.add(report(0, 2, row(2, samples=8, loss=9.0)), 2.0)
    lines = made.add(report(1, 2, row(1, loss=1.0), row(2, samples=8, loss=9.0)), 2.0)
    assert [(line.step, line.samples, line.values["loss"]) for line in lines] == [(1, 8, 1.0), (2, 16, 9.0)]


def test_a_value_that_is_not_finite_somewhere_is_not_finite_as_a_mean() -> None:
    made = of(2)
    made.add(report(0, 1, row(1, loss=None, large=1.5e308)), 1.0)
    (line,) = made.add(report(1, 1, row(1, loss=1.0, large=1.6e308)), 1.0)
    assert line.values == {"loss": None, "large": None}


def test_values_logged_outside_loops_have_a_line_after_their_step() -> None:
    made = of(2)
    made.add(report(0, 1, row(1, loss=1.0)), 1.0)
    first = made.add(report(1, 1, row(1, loss=3.0)), 1.0)
    made.add(report(0, 1, row(1, seconds=0.0, samples=0, width=4.0)), 2.0)
    made.add(report(0, 1, row(1, seconds=0.0, samples=0, depth=5.0)), 2.0)
    made.add(report(1, 1, row(1, seconds=0.0, samples=0, width=8.0)), 2.0)
    made.add(report(0, 2, row(2)), 3.0)
    rest = made.add(report(1, 2, row(2)), 3.0)
    assert [(line.step, line.samples, line.values) for line in (*first, *rest)] == [
        (1, 8, {"loss": 2.0}),
        (1, 0, {"width": 6.0, "depth": 5.0}),
        (2, 8, {}),
    ]


def test_steps_that_are_done_again_have_lines_again_and_share_none_with_the_first_try() -> None:
    """All members were lost at step 5 but for the last rows of one; others begin at step 3."""
    made = of(2)
    for worker in range(2):
        first = made.add(report(worker, 4, *(row(step, loss=1.0) for step in range(1, 5))), 10.0)
    made.add(report(1, 6, row(5, loss=1.0), row(6, loss=1.0)), 11.0)
    rest = made.regroup([2, 3])
    for worker in range(2, 4):
        rest += made.add(report(worker, 4, row(3, loss=2.0), row(4, loss=2.0), generation=2), 20.0)
    assert [(line.step, line.generation, line.samples) for line in (*first, *rest)] == [
        *((step, 1, 8) for step in range(1, 5)),
        *((step, 1, 4) for step in (5, 6)),
        *((step, 2, 8) for step in (3, 4)),
    ]
    assert [line.values["loss"] for line in rest] == [1.0, 1.0, 2.0, 2.0]


def test_workers_that_run_free_have_a_line_for_each_update_also_after_a_restore() -> None:
    """Whoever had got further before must not keep the others' updates from being waited for."""
    made = of(2)
    lines = made.add(report(0, 39, row(37), row(39)), 10.0)
    lines += made.add(report(1, 40, row(38), row(40)), 10.0)
    lines += made.regroup([0, 1])
    lines += made.add(report(0, 24, row(22), row(24), generation=2, clock=1.0), 11.0)
    lines += made.add(report(1, 25, row(23), row(25), generation=2, clock=1.0), 11.0)
    lines += made.finish()
    assert [line.step for line in lines] == [37, 38, 39, 40, 22, 23, 24, 25]
    assert {line.samples for line in lines} == {4}


def test_what_a_newcomers_script_logs_again_on_its_way_in_is_old() -> None:
    made = of(1)
    lines = made.add(report(0, 0, row(0, seconds=0.0, samples=0, width=4.0)), 1.0)
    lines += made.add(report(0, 2, row(1), row(2), clock=1.0), 2.0)
    lines += made.regroup([0, 1])
    lines += made.add(report(1, 0, row(0, seconds=0.0, samples=0, width=4.0), generation=2), 3.0)
    lines += made.add(report(1, 3, row(3), generation=2, clock=1.0), 4.0)
    lines += made.add(report(0, 3, row(3), generation=2, clock=3.0), 4.0)
    assert [line.step for line in lines] == [0, 1, 2, 3]


def test_rows_that_were_held_up_are_placed_where_they_happened() -> None:
    """The coordinator stood still for a minute, or the connection did."""
    made = of(1)
    made.add(report(0, 1, row(1), clock=100.0), 5000.0)
    late = made.add(report(0, 3, row(2), row(3), clock=101.0), 5060.0)
    last = made.add(report(0, 4, row(4), clock=160.0), 5060.0)
    assert [line.time for line in (*late, *last)] == [5000.5, 5001.0, 5060.0]


def test_a_coordinator_that_was_started_again_waits_for_all_members_before_it_writes_a_line() -> None:
    written = MetricLine(step=2, time=10.0, generation=1, seconds=0.5, samples=8)
    made = Metrics(written)
    assert made.regroup([0, 1]) == []
    assert made.add(report(0, 5, row(1), row(3), row(5)), 12.0) == []
    assert [line.step for line in made.add(report(1, 6, row(2), row(4), row(6)), 12.5)] == [3, 4, 5]


def test_a_step_that_has_its_line_gets_no_second_one() -> None:
    made = of(1)
    assert len(made.add(report(0, 2, row(1), row(2)), 1.0)) == 2
    assert [line.step for line in made.add(report(0, 3, row(2), row(3)), 2.0)] == [3]


def test_a_row_that_says_nothing_makes_no_line() -> None:
    """Of a worker that had no sample in the step in which its loop was left."""
    made = of(1)
    made.add(report(0, 1, row(1, seconds=0.0, samples=0)), 1.0)
    assert made.finish() == []


def test_nothing_is_lost_when_the_job_ends() -> None:
    made = of(2)
    made.add(report(0, 2, row(1), row(2)), 1.0)
    assert [line.step for line in made.finish()] == [1, 2]
    assert made.finish() == []


def test_a_silent_worker_does_not_make_the_coordinator_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_WAITING", 10)
    made = of(2)
    lines = made.add(report(0, 25, *(row(step) for step in range(1, 26))), 1.0)
    assert [line.step for line in lines] == list(range(1, 16))
    assert len(made.finish()) == 10


numbers = st.floats(-1e6, 1e6)
values = st.dictionaries(st.sampled_from(["loss", "norm"]), numbers)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[list[StepRow]], list[tuple[int, int]]]:
    """Workers with a row for every step each, and how their reports come in: (worker, rows) until all are through."""
    workers, steps = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    seconds, samples = st.floats(0.001, 1.0), st.integers(1, 9)
    rows = [
        [StepRow(step + 1, 0, draw(seconds), draw(samples), draw(values), 0, 1, 0.0) for step in range(steps)]
        for _ in range(workers)
    ]
    left = [steps] * workers
    order: list[tuple[int, int]] = []
    while any(left):
        worker = draw(st.sampled_from([worker for worker in range(workers) if left[worker]]))
        count = draw(st.integers(1, left[worker]))
        left[worker] -= count
        order.append((worker, count))
    return workers, rows, order


@given(jobs())
def test_every_step_is_one_line_in_order_whatever_the_order_of_reports(
    job: tuple[int, list[list[StepRow]], list[tuple[int, int]]],
) -> None:
    workers, rows, order = job
    made, sent, lines = of(workers), [0] * workers, []
    for now, (worker, count) in enumerate(order, start=100):
        part = rows[worker][sent[worker] : sent[worker] + count]
        sent[worker] += count
        lines += made.add(report(worker, sent[worker], *part), float(now))
        assert len(lines) == min(sent), "a line waits exactly until every worker has reported its step"
    assert made.finish() == []
    assert [line.step for line in lines] == list(range(1, len(rows[0]) + 1))
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    for line, step_rows in zip(lines, zip(*rows, strict=True), strict=True):
        assert line.samples == sum(one.samples for one in step_rows)
        assert line.seconds == pytest.approx(max(one.seconds for one in step_rows), abs=1e-6)
        assert set(line.values) == {name for one in step_rows for name in one.values}
        for name, mean in line.values.items():
            logged = [(one.samples, one.values[name]) for one in step_rows if name in one.values]
            expected = math.fsum(weight * value for weight, value in logged) / sum(weight for weight, _ in logged)  # type: ignore[operator]  weights are numbers here
            assert mean == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(numbers, st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_what_all_workers_agree_on_is_not_rounded(value: float, samples: list[int]) -> None:
    made, lines = of(len(samples)), []
    for worker, count in enumerate(samples):
        lines += made.add(report(worker, 1, row(1, samples=count, loss=value)), 1.0)
    assert [line.values["loss"] for line in lines] == [value]


def test_a_line_has_the_whole_steps_samples_also_if_a_worker_died_before_it_told_its_own() -> None:
    made = Metrics()
    made.regroup([0, 1])
    assert made.add(report(0, 1, row(1, samples=8, total=16)), 10.0) == []
    assert [line.samples for line in made.regroup([0])] == [16]
