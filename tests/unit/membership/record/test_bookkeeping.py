"""Whatever happens to a job, its record says what is true of it: by counting, in histories made up at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.membership.record.bookkeeping import Before, Bookkeeping
from shoal.watch.incident_words import without_progress
from shoal.watch.record.goodput import Goodput
from shoal.watch.record.story import Story
from support.histories import BEGAN, History
from support.records import job_started

NEAR = 0.01  # seconds; lines have thousandths, and reports take a moment
Action = Callable[[History], None]


def some_action() -> st.SearchStrategy[Action]:
    number = st.integers(0, 5)
    return st.one_of(
        st.builds(lambda n, s: lambda job: job.apply(n, s), st.integers(1, 6), st.floats(0.05, 0.3)),
        st.builds(lambda n: lambda job: job.report(n), number),
        st.builds(lambda n: lambda job: job.die(n), number),
        st.builds(lambda n: lambda job: (job.die(n), job.die(n + 1)), number),
        st.just(lambda job: job.join()),
        st.just(lambda job: job.lose_servers()),
        st.just(lambda job: job.save()),
        st.builds(lambda s: lambda job: job.stop_all(s), st.floats(8.0, 20.0)),
        st.builds(lambda s, dies: lambda job: job.evaluate(s, dies=dies), st.floats(1.0, 9.0), st.booleans()),
        st.builds(lambda s: lambda job: job.replace_coordinator(s), st.floats(0.3, 2.4)),
        st.builds(lambda yes: lambda job: job.hold(is_heard=yes), st.booleans()),
    )


@given(st.integers(1, 3), st.booleans(), st.lists(some_action(), max_size=14))
def test_the_record_of_any_history_is_true(workers: int, is_free: bool, actions: list[Action]) -> None:
    job = History(workers, is_free=is_free)
    job.apply(3, 0.1)
    for member in job.members:
        job.report(member)
    for action in actions:
        action(job)
    job.apply(3, 0.1)
    job.end()
    check_lines(job)
    check_standstills(job)
    check_what_people_are_told(job)


def check_lines(job: History) -> None:
    """Every applied step has one line, in order, with its own samples, when it was applied."""
    assert [(line.step, line.samples) for line in job.lines] == [(each.step, each.samples) for each in job.applied]
    assert [line.time for line in job.lines] == [pytest.approx(each.time, abs=NEAR) for each in job.applied]
    assert len({record.time for record in job.shown}) == len(job.shown), "watchers tell events apart by their times"


def check_standstills(job: History) -> None:
    """Each is told once, in order; none overlaps another, and nothing is redone that was not."""
    told = [record.event for record in job.records if isinstance(record.event, events.ProgressResumed)]
    spans = [(event.time - event.seconds, event.time) for event in told]
    assert spans == [pytest.approx(span, abs=NEAR) for span in job.standstills]
    assert all(before[1] <= after[0] + NEAR for before, after in itertools.pairwise(spans))
    assert sum(event.taken_back for event in told) == job.taken_back
    assert sum(event.samples_taken_back for event in told) == job.samples_taken_back
    assert sum(event.redone for event in told) == job.taken_back + job.void


def check_what_people_are_told(job: History) -> None:
    story = Story()
    for record in job.records:
        story.add(record)
    goodput = Goodput(story.course)
    for line in job.lines:
        goodput.add(line)
    cost = goodput.cost()
    stood = sum(until - since for since, until in job.standstills)
    steps = sum(incident.standstills for incident in story.incidents) * cost.step_seconds
    assert sum(incident.seconds for incident in story.incidents) == pytest.approx(stood, abs=NEAR * 10)
    if not job.taken_back:
        assert without_progress(story.incidents, cost) <= stood + NEAR
        assert without_progress(story.incidents, cost) >= max(0.0, stood - steps - NEAR * 10)
    # Time with progress and time without are the time of the job: from its first step, and between loops neither.
    began, ended = job.applied[0].time - job.lines[0].seconds, job.applied[-1].time
    assert cost.seconds == pytest.approx(ended - began - job.outside, abs=NEAR * 10)
    # Samples that were applied, less those that were taken back, are those that count.
    assert cost.samples == sum(each.samples for each in job.counting)
    assert cost.samples == sum(line.samples for line in job.lines) - job.samples_taken_back
    for number, worker in job.workers.items():
        state = story.workers.get(number)
        assert (0 if state is None else state.samples) == worker.samples
        assert (0.0 if state is None else state.seconds) == pytest.approx(worker.seconds, abs=1e-6)
        assert (0 if state is None else state.bytes_sent) == worker.samples
    assert story.board.step == job.step
    assert story.ended is not None
    assert story.ended.seconds == pytest.approx(job.time - BEGAN, abs=NEAR)
    assert math.isfinite(cost.goodput or 0.0)


def test_a_job_has_lasted_since_its_start_whenever_its_coordinator_was_started() -> None:
    start = events.Record(100.0, job_started())
    books = Bookkeeping(Before(began=100.0, events=[start]))
    books.take(events.Record(140.0, events.CoordinatorReturned(generation=1, reason="started again", workers=(0,))))
    end = events.JobEnded(outcome="finished", exit_code=0, reason="done", seconds=20.0)
    [told] = books.take(events.Record(160.0, end)).events
    assert isinstance(told.event, events.JobEnded)
    assert told.event.seconds == 60.0


def test_that_all_servers_are_lost_is_told_once_however_many_workers_find_out() -> None:
    gone = events.ParametersGone(server=None, blocks=5, size=20_000, reason="all servers that held them are lost")
    formed = events.GenerationFormed(generation=2, workers=(0, 1), schedule="", codec="", reason="")
    books = Bookkeeping()
    told = [books.take(events.Record(float(time), event)) for time, event in enumerate((gone, gone, formed, gone))]
    assert [len(written.events) for written in told] == [1, 0, 1, 1]
    assert [len(written.shown) for written in told] == [1, 0, 1, 1]
