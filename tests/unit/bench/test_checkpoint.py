"""What the figures of `shoal bench checkpoint` are taken to mean."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.bench import texts
from shoal.bench.checkpoint.figures import ASYNC, bounds, pairs, text
from shoal.bench.verdict import Bound
from shoal.errors import UsageError


@given(some.lists(some.floats(0.1, 0.5), min_size=20, max_size=60), some.integers(1, 5), some.floats(0.6, 1.5))
def test_windows_share_out_all_steps_and_all_seconds(lengths: list[float], first: int, window: float) -> None:
    ends = list(itertools.accumulate(lengths))
    following = next((step for step in range(first, len(ends)) if ends[step] >= ends[first - 1] + 2 * window), None)
    if following is None or following + 1 - first < 4:
        return
    following += 1  # counted from 1
    (pair,) = pairs(ends, [first, following], window)
    steps, seconds = following - first, ends[following - 1] - ends[first - 1]
    # Both rates follow from how the time is cut in two: the first window lasts one step longer than `window` at most.
    cuts = [step for step in range(first + 1, following) if ends[step - 1] >= ends[first - 1] + window]
    spent = ends[cuts[0] - 1] - ends[first - 1]
    assert window - 1e-9 <= spent <= window + 0.5 + 1e-9
    assert pair["with"] == pytest.approx((cuts[0] - first) / spent)
    assert pair["without"] * (seconds - spent) + pair["with"] * spent == pytest.approx(steps)
    assert pair["ratio"] == pytest.approx(pair["with"] / pair["without"])


def test_a_slower_first_half_shows() -> None:
    ends = list(itertools.accumulate([*[1.0] * 5, *[0.25] * 8, *[0.2] * 10, 1.0]))
    (pair,) = pairs(ends, [5, 23], 2.0)
    assert pair == pytest.approx({"with": 4.0, "without": 5.0, "ratio": 0.8})


def test_a_step_longer_than_a_window_is_said() -> None:
    with pytest.raises(UsageError, match=texts.window_too_short(1)):
        pairs([3.0, 6.0, 9.0], [1, 2, 3], 1.0)


def found(*, blocked: float = 0.01, total: float = 1.0, growth: int = 100, ratio: float = 1.0) -> dict[str, Any]:
    def saves(blocked: float, total: float) -> list[dict[str, float]]:
        return [{"blocked": blocked * k, "total": total * k, "lost": 0.0, "steps": 1} for k in (0.5, 1.0, 7.0)]

    others = {name: saves(blocked, 1.0) for name, blocked in zip(ASYNC, (0.1, 0.03, 0.04), strict=True)}
    methods = {"shoal": saves(blocked, total), "torch.save": saves(1.0, 1.0), **others}
    return {
        "saves": {"state_bytes": 100, "step": 0.1, "saves": methods},
        "memory": {"shoal": {"state_bytes": 100, "growth": growth, "helpers": 0}},
        "throughput": {
            "pairs": [{"with": 1.0, "without": 1.0, "ratio": value} for value in (0.1, ratio, 2.0)],
            "checkpoint_seconds": [1.0, 3.0, 12.0],
            "window": 10.0,
        },
    }


def missed(judged: list[Bound]) -> list[str]:
    return [bound.what for bound in judged if not bound.holds]


def test_all_bounds_hold_up_to_their_limits() -> None:
    assert missed(bounds(found(blocked=0.03, total=1.0, growth=105, ratio=0.97))) == []
    assert len(bounds(found())) == 5


@pytest.mark.parametrize(
    ("figures", "what"),
    [
        ({"blocked": 0.031}, ["blocked, of that of async DCP, thread"]),
        ({"blocked": 0.06}, ["blocked, of torch.save's", "blocked, of that of async DCP, thread"]),
        ({"total": 1.01}, ["total, of torch.save's"]),
        ({"growth": 106}, ["extra copies of the state"]),
        ({"ratio": 0.969}, ["throughput, of that without"]),
    ],
)
def test_a_bound_beyond_its_limit_is_missed(figures: dict[str, Any], what: list[str]) -> None:
    assert missed(bounds(found(**figures))) == what
    assert text(found(**figures)).count("MISSED") == len(what)


@pytest.mark.parametrize("part", ["saves", "memory", "throughput"])
def test_what_was_not_measured_is_not_judged(part: str) -> None:
    whole = found()
    assert len(bounds({part: whole[part]})) == {"saves": 3, "memory": 1, "throughput": 1}[part]
    assert text({part: whole[part]}).count("holds") == len(bounds({part: whole[part]}))


def test_a_checkpoint_that_ends_beyond_its_window_is_said() -> None:
    assert "1 of 3 ended in the window without" in text(found())
