"""How far a job was by samples and epochs, step by step, also where steps were done again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.steps import MetricLine
from shoal.watch.record.series import Curves
from shoal.watch.record.tracks import EpochTrack, Track


def line(step: int, samples: int) -> MetricLine:
    return MetricLine(step=step, time=2.0 * step, seconds=2.0, samples=samples, values={"loss": 1.0})


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=6))
def test_samples_after_each_step_are_those_of_the_steps_that_count(goes: list[tuple[int, int, int]]) -> None:
    curves = Curves()
    counted: dict[int, int] = {}
    for begins, count, batch in goes:
        first = min(begins, len(counted) + 1)
        counted = {step: samples for step, samples in counted.items() if step < first}
        for step in range(first, first + count):
            curves.add(line(step, batch))
            counted[step] = batch
    for step in (1, len(counted) // 2, len(counted)):
        expected = sum(samples for each, samples in counted.items() if each <= step)
        assert curves.samples.at(step) == pytest.approx(expected)


def test_steps_of_one_size_need_two_anchors() -> None:
    curves = Curves()
    for step in range(1, 10_001):
        curves.add(line(step, 64))
    assert curves.samples.anchors() == [(0, 0.0), (10_000, 640_000)]
    curves.add(line(5001, 64))
    assert curves.samples.anchors()[-1] == (5001, 5001 * 64)
    assert curves.samples.at(2500) == 160_000


def test_anchors_are_bounded_and_the_line_stays_close() -> None:
    track = Track(most=20)
    for step in range(1, 1001):
        track.add(step, float(step * step))
    assert len(track.anchors()) <= 20
    assert track.anchors()[-1] == (1000, 1_000_000.0)
    assert all(abs(track.at(step) - step * step) < 20_000 for step in range(1, 1001))


def test_epochs_are_counted_on_over_loops_and_within_the_one_that_goes_on() -> None:
    epochs = EpochTrack()
    epochs.begin_loop(100)
    epochs.end_epoch(100)
    epochs.end_epoch(200)
    epochs.begin_loop(50)
    epochs.end_epoch(250)
    track = epochs.until(275)
    assert track is not None
    assert [track.at(step) for step in (0, 50, 100, 200, 225, 250, 275)] == [0, 0.5, 1, 2, 2.5, 3, 3.5]


def test_an_epoch_that_is_done_again_counts_once() -> None:
    epochs = EpochTrack()
    epochs.begin_loop(100)
    for end in (100, 200, 300):
        epochs.end_epoch(end)
    epochs.rewind(151)  # resumed after step 150
    for end in (200, 200, 300):  # the second one is told twice
        epochs.end_epoch(end)
    track = epochs.until(300)
    assert track is not None
    assert track.at(300) == pytest.approx(3.0)
    assert track.at(150) == pytest.approx(1.5)


def test_epochs_of_unknown_length_are_no_axis() -> None:
    stream = EpochTrack()
    stream.begin_loop(None)
    assert stream.until(500) is None


def test_workers_that_run_free_tell_of_no_epochs_end() -> None:
    epochs = EpochTrack()
    epochs.begin_loop(100)
    track = epochs.until(250)
    assert track is not None
    assert track.at(250) == pytest.approx(2.5)
