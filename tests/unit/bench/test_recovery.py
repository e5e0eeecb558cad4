"""What diaries of killed jobs come to."""

from __future__ import annotations

import math

from shoal.bench.recovery.figures import (
    Applied,
    Diary,
    bounds_of_goodput,
    bounds_of_kills,
    cost_share,
    recovery,
    replacement,
    samples_between,
    step_seconds,
)


def diary(*applied: tuple[float, int, int]) -> Diary:
    return Diary(applied=[Applied(at, step, generation, samples=32) for at, step, generation in applied])


def test_a_recovery_ends_when_the_slowest_survivor_has_a_step_of_a_later_generation() -> None:
    diaries = {
        0: diary((1.0, 1, 1), (1.2, 2, 1), (2.5, 3, 2)),
        1: diary((1.0, 1, 1), (2.6, 2, 1), (3.0, 3, 2)),  # a step that was whole by then, then the next generation's
        2: diary((1.0, 1, 1)),
        3: diary((9.0, 8, 3)),  # came later
    }
    assert recovery(diaries, victim=2, killed=1.3, generation=1) == 3.0 - 1.3
    diaries[1].applied.pop()
    assert recovery(diaries, victim=2, killed=1.3, generation=1) is None


def test_a_step_of_several_diaries_counts_once_and_as_it_was_done_last() -> None:
    diaries = {0: diary((1.0, 1, 1), (2.0, 2, 1), (5.0, 2, 2)), 1: diary((1.1, 1, 1))}
    assert samples_between(diaries, 0.0, 10.0) == 64
    assert samples_between(diaries, 1.5, 4.0) == 0


def test_bounds() -> None:
    held = bounds_of_kills([0.5, 0.9], [1.5], step=0.2)
    assert all(bound.holds for bound in held)
    assert [bound.holds for bound in bounds_of_kills([1.5, 3.5], [], step=0.2)] == [False, False, False]
    assert bounds_of_kills([1.0], [], step=0.2)[-1].found == math.inf
    assert [bound.holds for bound in bounds_of_goodput({"spare": 0.91, "no spare": 0.7}, 0.02)] == [True, False, True]


def test_cost_is_a_part_of_a_normal_step() -> None:
    made = diary((1.0, 1, 1), (2.0, 2, 1), (9.0, 3, 2), (10.0, 4, 2))
    made.costs, made.steps, made.imported = {"digests": 0.02, "heartbeats": 0.06}, 4, 0.25
    assert step_seconds(made) == 1.0
    assert cost_share(made) == 0.02
    assert replacement(made) == 0.75
