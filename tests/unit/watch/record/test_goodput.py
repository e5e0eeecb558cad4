"""Goodput, from the metrics and from when the events say that the job was whole."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.steps import MetricLine
from shoal.watch.incident_words import cost_of, without_progress
from shoal.watch.record.goodput import MOST_STRETCHES, Cost, Course, Goodput, merged
from shoal.watch.record.incident import Incident
from shoal.watch.record.run_record import read_record
from support.records import eventful, faulty


def line(step: int, time: float, seconds: float = 0.25, samples: int = 100) -> MetricLine:
    return MetricLine(step=step, time=time, seconds=seconds, samples=samples)


def cost(course: Course, *lines: MetricLine) -> Cost:
    made = Goodput(course)
    for each in lines:
        made.add(each)
    return made.cost()


def steady(first: int, count: int, start: float, seconds: float = 0.25) -> list[MetricLine]:
    return [line(first + n, start + seconds * (n + 1), seconds) for n in range(count)]


def test_an_undisturbed_job_has_all_of_it() -> None:
    found = cost(Course(starts=(0.0,)), *steady(1, 100, 1.0))
    assert found.goodput == pytest.approx(1.0)
    assert found.rate == pytest.approx(400.0)
    assert found.step_seconds == pytest.approx(0.25)
    assert (found.samples, found.seconds) == (10_000, pytest.approx(25.0))


def test_time_without_progress_is_lost() -> None:
    course = Course(starts=(0.0,), stops=((11.0, 20.9),), disturbed=((11.0, 20.9),))
    found = cost(course, *steady(1, 40, 1.0), line(41, 21.0, seconds=0.5), *steady(42, 39, 21.0))
    assert found.seconds == pytest.approx(10.0 + 10.0 + 39 * 0.25), "also where no worker is left to count it"
    assert found.goodput == pytest.approx(80 * 0.25 / found.seconds)


def test_evaluations_and_pauses_are_not_in_the_time() -> None:
    course = Course(starts=(0.0, 1000.0))
    found = cost(course, *steady(1, 20, 1.0), *steady(21, 20, 60.0), *steady(41, 20, 1003.0))
    assert found.goodput == pytest.approx(1.0)
    assert found.seconds == pytest.approx(15.0)


def test_fewer_workers_are_measured_against_all_of_them() -> None:
    course = Course(starts=(0.0,), disturbed=((11.0, math.inf),))
    found = cost(course, *steady(1, 40, 1.0), *steady(41, 20, 11.0, seconds=0.5))
    assert found.goodput == pytest.approx((60 * 0.25) / 20.0)


def test_another_number_of_workers_after_a_resume_is_a_rate_of_its_own() -> None:
    course = Course(starts=(0.0, 100.0))
    found = cost(course, *steady(1, 40, 1.0), *steady(41, 40, 101.0, seconds=0.5))
    assert found.goodput == pytest.approx(1.0)


def test_steps_that_are_done_again_count_once_as_samples_and_twice_as_time() -> None:
    course = Course(starts=(0.0, 100.0))
    found = cost(course, *steady(1, 40, 1.0), *steady(21, 20, 101.0))
    assert (found.samples, found.seconds) == (4000, pytest.approx(15.0))
    assert found.goodput == pytest.approx(2 / 3)
    crashed = Incident(time=100.0, go=2, is_new_go=True, steps_redone=12, samples_redone=1200)
    assert found.redone_after(crashed) == (20, 2000), "events of a crash are behind the metrics"


def test_a_job_that_was_never_whole_has_no_goodput() -> None:
    found = cost(Course(starts=(0.0,), disturbed=((0.0, math.inf),)), *steady(1, 40, 1.0))
    assert (found.goodput, found.rate, found.step_seconds) == (None, None, 0.0)
    assert cost(Course()).goodput is None


def test_a_fault_that_breaks_no_exchange_costs_what_its_longest_step_took() -> None:
    course = Course(starts=(0.0,), disturbed=((11.0, 13.0),))
    found = cost(course, *steady(1, 40, 1.0), line(41, 13.25, seconds=2.25), *steady(42, 40, 13.25))
    stopped = Incident(time=11.0, lasts=2.0)
    assert found.lost_to(stopped) == pytest.approx(2.0)
    assert found.lost_to(Incident(time=30.0, lasts=2.0)) == 0.0
    assert found.lost_to(Incident(time=11.0)) == 0.0


def test_steps_whose_lines_were_lost_with_a_coordinator_count() -> None:
    found = cost(Course(starts=(0.0,)), *steady(1, 40, 1.0), *steady(51, 40, 13.5))
    assert (found.samples, found.seconds) == (9000, pytest.approx(22.5))
    assert found.goodput == pytest.approx(1.0)


def test_workers_that_run_free_are_measured_by_the_clock_and_not_by_their_own_time() -> None:
    """Two of them: an update takes a worker half a second, and there is one every quarter of a second."""
    course = Course(starts=(0.0,), stops=((11.0, 20.9),), disturbed=((11.0, 20.9),))
    before = [line(number, 1.0 + 0.25 * number, seconds=0.5) for number in range(1, 41)]
    after = [line(40 + number, 20.75 + 0.25 * number, seconds=0.5) for number in range(1, 41)]
    found = cost(course, *before, *after)
    assert found.step_seconds == pytest.approx(0.25)
    assert found.rate == pytest.approx(400.0)
    assert found.seconds == pytest.approx(after[-1].time - before[0].time + 0.5)
    assert found.goodput == pytest.approx(8000 / (400 * found.seconds), rel=0.01)


def test_steps_that_a_job_took_back_while_it_ran_count_once() -> None:
    course = Course(starts=(0.0,), stops=((11.0, 12.9),), disturbed=((11.0, 12.9),))
    found = cost(course, *steady(1, 40, 1.0), *steady(21, 60, 13.0))
    assert found.samples == 8000
    assert found.seconds == pytest.approx(100 * 0.25 + 2.0)


def test_values_logged_outside_loops_are_no_steps() -> None:
    outside = MetricLine(step=40, time=50.0, values={"parameters": 3.0})
    assert cost(Course(), *steady(1, 40, 1.0), outside).samples == 4000


def test_an_endless_job_is_measured_in_bounded_memory() -> None:
    made = Goodput(Course())
    for number in range(1, 2 * MOST_STRETCHES + 100):
        made.add(line(number, float(number), seconds=1.0))
    [go] = made._goes.values()
    assert len(go.stretches) <= MOST_STRETCHES
    assert made.cost().goodput == pytest.approx(1.0)


def test_goodput_of_a_job_with_every_kind_of_fault(tmp_path: Path) -> None:
    record = read_record(faulty(tmp_path / "run"))
    found = cost_of(record)
    assert found.step_seconds == pytest.approx(0.25)
    assert found.rate == pytest.approx(512.0)
    assert without_progress(record.story.incidents, found) == pytest.approx(1.0 + 0.25 + 0.5 + 8.0)
    assert found.goodput is not None
    assert 0.92 < found.goodput < 0.96


def test_a_job_whose_record_just_stops(tmp_path: Path) -> None:
    record = read_record(faulty(tmp_path / "run", end=False))
    assert record.state == "crashed"
    assert cost_of(record).goodput == pytest.approx(cost_of(read_record(faulty(tmp_path / "whole"))).goodput)


def test_resumed_job_pays_for_what_it_did_again(tmp_path: Path) -> None:
    record = read_record(eventful(tmp_path / "run"))
    found = cost_of(record)
    assert found.samples == 600 * 128
    assert found.goodput is not None
    assert found.goodput < 0.85, "a quarter of the steps was done twice"


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=12)


@given(spans, st.integers(-2, 60), st.integers(0, 5))
def test_disturbances_are_found_wherever_they_lie(found: list[tuple[int, int]], start: int, length: int) -> None:
    given_spans = [(float(at), float(at + lasts)) for at, lasts in found]
    course = Course(stops=merged(given_spans))
    end = start + length
    assert course.is_stopped(start, end) == any(one <= end and other >= start for one, other in given_spans)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 3), st.integers(0, 99), st.floats(0, 9)), max_size=40), spans
)
def test_goodput_is_a_part_of_one_whatever_the_metrics_hold(
    told: list[tuple[int, float, int, float]], stops: list[tuple[int, int]]
) -> None:
    stopped = merged([(float(at), float(at + lasts)) for at, lasts in stops])
    made = Goodput(Course(starts=(0.0,), stops=stopped, disturbed=stopped))
    time = 0.0
    for step, seconds, samples, later in told:
        time += later
        made.add(line(step, time, seconds, samples))
    found = made.cost()
    assert found.goodput is None or 0 <= found.goodput <= 1
    assert found.seconds >= 0
