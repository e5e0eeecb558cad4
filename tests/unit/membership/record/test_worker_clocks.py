"""What workers tell by their own clocks, in the coordinator's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.membership.record.worker_clocks import WINDOW, WorkerClocks, own_clock


def test_the_report_that_was_fastest_says_how_far_clocks_are_apart() -> None:
    clocks = WorkerClocks()
    found = [clocks.hear(3, sent, arrived) for sent, arrived in ((10.0, 1010.5), (11.0, 1011.1), (12.0, 1042.0))]
    assert found == [pytest.approx(1000.5), pytest.approx(1000.1), pytest.approx(1000.1)]


def test_a_clock_that_drifts_is_followed() -> None:
    """Ten seconds in a day, in either direction."""
    for drift in (1 + 1e-4, 1 - 1e-4):
        clocks, time = WorkerClocks(), 0.0
        while time < 86_400.0:
            time += 30.0
            ahead = clocks.hear(0, drift * time, 5000.0 + time)
            assert drift * time + ahead == pytest.approx(5000.0 + time, abs=1e-3 * WINDOW)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(0.0, 60.0)), min_size=1, max_size=30),
)
def test_nothing_is_placed_before_it_happened_nor_after_it_arrived(
    apart: float, reports: list[tuple[float, float]]
) -> None:
    clocks, time = WorkerClocks(), 0.0
    for passed, delay in reports:
        time += passed
        ahead = clocks.hear(0, time - apart, time + delay)
        assert time - 1e-6 <= time - apart + ahead <= time + delay + 1e-6


def test_the_own_clock_goes_on() -> None:
    assert own_clock() <= own_clock()
