"""Which optimizer steps are mistakes: those that workers would take each for itself, and no step of a right script."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.training import texts
from shoal.training.mistakes.step_verdicts import FIRST_STEPS, Finding, StepSeen, judge

IN_LOOP = StepSeen("SGD", [2, 4], workers=2, in_loop=True, is_handed=False, has_models=True, has_loops=True)
OUTSIDE = replace(IN_LOOP, in_loop=False)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(IN_LOOP, is_handed=True, model="model 1"), id="handed over"),
        pytest.param(IN_LOOP, id="an inner loop on a copy"),
        pytest.param(replace(IN_LOOP, has_models=False), id="an optimization per sample, without a model"),
        pytest.param(replace(OUTSIDE, outside_steps=FIRST_STEPS - 1), id="a calibration behind a loop"),
        pytest.param(replace(OUTSIDE, has_models=False), id="a calibration behind a loop without a model"),
        pytest.param(replace(OUTSIDE, has_loops=False), id="something small before the first loop"),
    ],
)
def test_steps_of_right_scripts(seen: StepSeen, workers: int) -> None:
    assert judge(replace(seen, workers=workers)) is None


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(OUTSIDE, is_handed=True, model="model 1"), id="a learning-rate finder"),
        pytest.param(replace(OUTSIDE, model="model 1", has_loops=False), id="one with an optimizer of its own"),
        pytest.param(replace(OUTSIDE, has_models=False, has_loops=False), id="a plain script"),
    ],
)
def test_steps_outside_loops_are_right_alone_only(seen: StepSeen) -> None:
    assert judge(replace(seen, workers=1)) is None
    finding = judge(seen)
    assert finding is not None
    assert finding.is_error


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unknown_optimizer_of_a_known_model_is_an_error_also_alone(workers: int) -> None:
    seen = replace(IN_LOOP, model="model 1", workers=workers)
    assert judge(seen) == Finding(texts.optimizer_unknown("SGD", "model 1"), is_error=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_forgotten_second_model_is_worth_a_warning(workers: int) -> None:
    seen = replace(IN_LOOP, goes_on=True, workers=workers)
    assert judge(seen) == Finding(texts.model_forgotten("SGD", [2, 4]), is_error=False)


@pytest.mark.parametrize("seen", [OUTSIDE, replace(OUTSIDE, has_models=False), replace(OUTSIDE, has_loops=False)])
def test_a_training_of_its_own_behind_or_before_a_loop_is_worth_a_warning(seen: StepSeen) -> None:
    seen = replace(seen, outside_steps=FIRST_STEPS)
    assert judge(seen) == Finding(texts.trained_apart("SGD", [2, 4], FIRST_STEPS), is_error=False)
    assert judge(replace(seen, workers=1)) is None


def test_a_forgotten_only_model_is_an_error_where_there_are_several_workers() -> None:
    seen = replace(IN_LOOP, goes_on=True, has_models=False)
    assert judge(seen) == Finding(texts.model_unknown("SGD", 2), is_error=True)
    alone = judge(replace(seen, workers=1))
    assert alone is not None
    assert not alone.is_error


def test_the_error_says_what_to_write() -> None:
    assert judge(replace(OUTSIDE, model="model 1")) == Finding(texts.step_outside_loop("SGD", 2), is_error=True)
    nothing = replace(OUTSIDE, has_models=False, has_loops=False)
    assert judge(nothing) == Finding(texts.step_without_run("SGD", 2), is_error=True)
