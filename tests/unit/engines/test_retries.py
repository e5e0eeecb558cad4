"""Pauses before something that failed is tried again."""

from __future__ import annotations

import pytest

from shoal.engines.retries import Retries


def pauses(retries: Retries, name: str, *lasted: float) -> list[float]:
    """Before each try, for failures after so many seconds."""
    found, now = [], 100.0
    for seconds in lasted:
        found.append(retries.failed(name, now, lasted=seconds))
        assert retries.next_due == now + found[-1]
        now = retries.next_due
        assert retries.take_due(now - 0.1) == []
        assert retries.take_due(now) == [name]
        assert retries.take_due(now) == []
    return found


def test_pauses_double_up_to_the_longest() -> None:
    assert pauses(Retries(5.0, 60.0), "a", *[0.0] * 6) == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


@pytest.mark.parametrize(("lasted", "pause"), [(60.0, 20.0), (61.0, 5.0)])
def test_whoever_held_out_for_long_begins_with_the_first_pause(lasted: float, pause: float) -> None:
    assert pauses(Retries(5.0, 60.0), "a", 0.0, 0.0, lasted)[-1] == pause


def test_each_has_its_own_pause_and_the_earliest_comes_first() -> None:
    retries = Retries(1.0, 8.0)
    retries.failed("b", 2.0)
    retries.failed("a", 1.0)
    retries.failed("a", 1.5)  # 2 s
    assert retries.next_due == 3.0
    assert retries.take_due(10.0) == ["b", "a"]
    assert retries.next_due is None
