"""Which applied steps count, and what a step that is done again takes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import steps
from shoal.steps import AppliedSteps, MetricLine, SoFar, StepRow


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), max_size=60))
def test_samples_of_the_steps_that_count(lines: list[tuple[int, int]]) -> None:
    applied = AppliedSteps()
    kept: dict[int, int] = {}
    for step, samples in lines:
        gone = {known: count for known, count in kept.items() if known >= step}
        kept = {known: count for known, count in kept.items() if known < step} | {step: samples}
        if len(kept) > 1:  # steps without a line were like the one after them
            kept |= dict.fromkeys(range(sorted(kept)[-2] + 1, step), samples)
        assert applied.add(step, samples) == (len(gone), sum(gone.values()))
        assert applied.total == sum(kept.values())
        assert applied.last == step


def test_steps_before_the_first_one_known_are_like_it() -> None:
    """Of a job whose coordinator was started again, or that was resumed."""
    applied = AppliedSteps(is_cut=True)
    applied.add(21, 8)
    applied.add(22, 4)
    assert applied.add(11, 8) == (12, 11 * 8 + 4)


def test_steps_that_nobody_is_left_to_tell_of_are_like_the_last() -> None:
    applied = AppliedSteps()
    for step in range(1, 38):
        applied.add(step, 4)
    applied.reach(40)
    applied.reach(12)
    assert applied.add(23, 4) == (18, 72)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=40), st.integers(0, 38))
def test_what_is_missing_is_known_from_what_all_have_used(steps: list[tuple[int, bool]], base: int) -> None:
    """Of workers that run free one that is killed takes its last rows with it; others know what all have used."""
    applied, total = AppliedSteps(), 0
    used = [samples for samples, _ in steps]
    for step, (samples, is_told) in enumerate(steps, start=1):
        total += samples
        if is_told or step in (1, len(steps)):
            known = step > base + 1
            applied.add(step, samples, SoFar(base, sum(used[base:step])) if known else None)
    if base == 0 or all(is_told for _, is_told in steps[: base + 1]):
        assert applied.total == total
    assert applied.last == len(steps)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_RUNS", 10)
    applied = AppliedSteps()
    for step in range(1, 101):
        applied.add(step, step % 3)
    assert len(applied._runs) <= 10
    assert applied.total == sum(step % 3 for step in range(1, 101))
    assert applied.add(98, 1) == (3, sum(step % 3 for step in (98, 99, 100)))


def test_values_logged_outside_loops_are_known_by_having_neither_samples_nor_time() -> None:
    assert StepRow(3, 0, 0.0, 0, {"width": 4.0}, 0, 1, 9.0).is_outside
    assert not StepRow(3, 0, 0.1, 0, {}, 8, 1, 9.0).is_outside
    assert MetricLine(step=3, time=1.0).is_outside
    assert not MetricLine(step=3, time=1.0, samples=8).is_outside
