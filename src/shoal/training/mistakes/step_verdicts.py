"""Whether an `optimizer.step()` of the script is a mistake. Pure.

Inside a loop over `run.batches` gradients are exchanged, and optimizers that were handed over apply whole steps only.
Outside, or with an optimizer or a model that `run` does not know, each worker trains for itself.

    in a loop     a handed-over optimizer                    right
                  another one, of a model of `run.model`     error: its steps cannot be undone
                  another one, step after step, of a model
                  that was not handed over                   warning; error where no model was handed over
                  another one, made anew in each step        right: an inner loop, such as MAML's
    outside       alone                                      right, such as a learning-rate finder
                  of several workers, a model of `run.model` error: nobody exchanges the gradients
                  of several workers, before anything was
                  handed over                                error: the script trains without `run`
                  any other                                  right, such as a calibration that all do alike;
                                                             warning once it is as long as a training
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.training import texts

FIRST_STEPS = 100  # outside loops that are no training yet, as before `shoal.main` (`entry.lone_steps`)


@dataclass(frozen=True)
class StepSeen:
    """A call of `step()` that is about to change something."""

    optimizer: str  # class name
    shape: Sequence[int]  # of the first parameter that it changes
    workers: int
    in_loop: bool  # in an iteration of a loop over `run.batches`
    is_handed: bool  # the optimizer was given to `run.optimizer`
    model: str = ""  # of `run.model`, with a parameter that this step changes; empty: there is none
    has_models: bool = False  # the script has called `run.model`
    has_loops: bool = False  # the script has come to a loop over `run.batches`
    goes_on: bool = False  # it trains module parameters, and goes on from where it left them in an earlier step
    outside_steps: int = 0  # that it has taken, with this one, outside loops, each from where the last one left off


@dataclass(frozen=True)
class Finding:
    text: str
    is_error: bool


def judge(seen: StepSeen) -> Finding | None:
    """What is wrong with a step; None: nothing."""
    text = _error(seen)
    if text is not None:
        return Finding(text, is_error=True)
    if seen.in_loop and not seen.is_handed and seen.goes_on:
        return Finding(texts.model_forgotten(seen.optimizer, seen.shape), is_error=False)
    if seen.workers > 1 and seen.outside_steps >= FIRST_STEPS:
        return Finding(texts.trained_apart(seen.optimizer, seen.shape, seen.outside_steps), is_error=False)
    return None


def _error(seen: StepSeen) -> str | None:
    is_alone = seen.workers == 1
    if seen.in_loop:
        if seen.is_handed:
            return None
        if seen.model:
            return texts.optimizer_unknown(seen.optimizer, seen.model)
        if seen.goes_on and not seen.has_models and not is_alone:
            return texts.model_unknown(seen.optimizer, seen.workers)
        return None
    if is_alone:
        return None
    if seen.is_handed or seen.model:
        return texts.step_outside_loop(seen.optimizer, seen.workers)
    if not seen.has_models and not seen.has_loops:
        return texts.step_without_run(seen.optimizer, seen.workers)
    return None
