"""Curves thinned while they are read, and what a resume does to them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.steps import MetricLine
from shoal.watch.record.series import MOST_NAMES, MOST_POINTS, Curves, Series, read_curves


def line(step: int, value: float | None, *, samples: int = 10, seconds: float = 2.0, name: str = "loss") -> MetricLine:
    return MetricLine(step=step, time=2.0 * step, seconds=seconds, samples=samples, values={name: value})


def logged(step: int, value: float, name: str = "score") -> MetricLine:
    """Outside loops."""
    return line(step, value, samples=0, seconds=0.0, name=name)


def curves(*lines: MetricLine) -> Curves:
    made = Curves()
    for given_line in lines:
        made.add(given_line)
    return made


def shown(series: Series) -> list[tuple[int, float | None]]:
    return [(point.step, point.mean) for point in series.points()]


# Each go of a job begins at some step and takes some more; the first begins at step 1.
goes = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 120)), min_size=1, max_size=5)


def history(told: list[tuple[int, int]]) -> tuple[list[tuple[int, float]], dict[int, float]]:
    """Every line in order, each with its own value, and what is left: a go's lines over those of the one before."""
    written: list[tuple[int, float]] = []
    left: dict[int, float] = {}
    for begins, count in told:
        first = min(begins, max(left) + 1) if left else 1
        left = {step: value for step, value in left.items() if step < first}
        for step in range(first, first + count):
            written.append((step, float(len(written))))
            left[step] = written[-1][1]
    return written, left


@given(goes)
def test_resumed_job_has_one_value_for_each_step_the_last_one(told: list[tuple[int, int]]) -> None:
    written, left = history(told)
    lines = (msgspec.structs.replace(line(step, value), time=2.0 * value) for step, value in written)
    made = curves(*lines)
    assert shown(made.values["loss"]) == sorted(left.items())
    assert made.step == max(left)
    assert [point.step for point in made.speed.points()] == sorted(left)


@given(goes, st.integers(4, 20))
def test_thinned_curve_is_bounded_and_holds_nothing_that_was_rewound(told: list[tuple[int, int]], most: int) -> None:
    written, left = history(told)
    series = Series(most)
    for step, value in written:
        series.add(step, 0.0, value)
    points = series.points()
    assert len(points) <= most
    assert [point.step for point in points] == sorted({point.step for point in points})
    for point in points:
        near = [value for step, value in left.items() if point.step - 2 * series.width < step <= point.step]
        assert point.low in near
        assert point.high in near
        assert point.low is not None
        assert point.high is not None
        assert point.mean is not None
        assert point.low <= point.mean <= point.high
    if len(told) == 1:  # nothing was rewound: every value is in one point
        assert points[-1].step == max(left)
        assert min(point.low for point in points if point.low is not None) == min(left.values())
        assert max(point.high for point in points if point.high is not None) == max(left.values())


def test_long_job_keeps_its_shape_in_two_thousand_points() -> None:
    series = Series()
    for step in range(1, 50_001):
        series.add(step, float(step), math.sin(step / 5000))
    points = series.points()
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS
    assert all(abs((point.mean or 0) - math.sin(point.step / 5000)) < 0.01 for point in points)


def test_values_logged_outside_loops_do_not_rewind_the_others() -> None:
    made = curves(line(1, 1.0), line(2, 2.0), logged(1, 9.0), logged(2, 8.0), logged(2, 7.0), line(3, 3.0))
    assert shown(made.values["loss"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert shown(made.values["score"]) == [(1, 9.0), (2, 7.0)]


def test_resume_rewinds_what_was_logged_outside_loops() -> None:
    made = curves(line(1, 1.0), logged(1, 5.0), line(2, 2.0), logged(2, 6.0), logged(1, 5.5), line(2, 3.0))
    assert shown(made.values["score"]) == [(1, 5.5)]
    assert shown(made.values["loss"]) == [(1, 1.0), (2, 3.0)]


def test_resume_rewinds_names_that_are_not_logged_again() -> None:
    made = curves(
        line(1, 1.0, name="old"), line(2, 2.0, name="old"), line(3, 3.0, name="old"), line(2, 9.0, name="new")
    )
    assert shown(made.values["old"]) == [(1, 1.0)]
    assert shown(made.values["new"]) == [(2, 9.0)]


def test_values_that_are_not_finite_leave_a_gap_and_are_counted() -> None:
    made = curves(line(1, 1.0), line(2, None), line(3, math.inf), line(4, 4.0)).values["loss"]
    assert shown(made) == [(1, 1.0), (2, None), (3, None), (4, 4.0)]
    assert made.not_finite == 2
    made.add(2, 0.0, 2.0)
    assert made.not_finite == 0


def test_speed_is_samples_over_seconds() -> None:
    series = Series(4)
    for step, (samples, seconds) in enumerate([(10, 1.0), (10, 9.0), (30, 1.0), (30, 1.0), (30, 1.0)], start=1):
        series.add(step, 0.0, samples / seconds, weight=seconds)
    first = series.points()[0]
    assert first.mean == pytest.approx(20 / 10)


def test_speed_of_workers_that_run_free_is_that_of_all_together() -> None:
    """Four of them: an update of 10 samples takes a worker two seconds, and there is one every half a second."""
    told = [MetricLine(step=n, time=0.5 * n, seconds=2.0, samples=10) for n in range(1, 200)]
    points = curves(*told).speed.points()[5:]
    assert [point.mean for point in points] == [pytest.approx(20.0)] * len(points)


def test_what_lies_between_loops_does_not_slow_anything_down() -> None:
    told = [line(step, 1.0) for step in range(1, 5)]
    told += [msgspec.structs.replace(line(step, 1.0), time=500.0 + 2.0 * step) for step in range(5, 9)]
    assert [point.mean for point in curves(*told).speed.points()] == [5.0] * 8


def test_names_without_end_are_cut_off() -> None:
    made = curves(*(line(step, 1.0, name=f"name {step}") for step in range(1, 3 * MOST_NAMES)))
    assert len(made.values) == MOST_NAMES
    assert f"name {MOST_NAMES + 1}" in made.left_out
    assert len(made.left_out) <= MOST_NAMES


def test_metrics_are_read_past_damage(tmp_path: Path) -> None:
    good = [msgspec.json.encode(line(step, float(step))) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([good[0], b"{broken", good[1], good[2][:20]]))
    made = read_curves(tmp_path)
    assert shown(made.values["loss"]) == [(1, 1.0), (2, 2.0)]
    assert (made.skipped, made.problem) == (1, "")
