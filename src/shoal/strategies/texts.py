"""What users are told about models, gradients and optimizers that a strategy cannot work with.

Tests refer to these texts, so that mending a word breaks none of them. Optimizers are counted from 1.
"""

from __future__ import annotations

from collections.abc import Sequence

# Any strategy


def no_shape(parameter: str) -> str:
    return (
        f"parameter {parameter!r} of the model has no shape yet; run one batch through it before run.model, "
        "or use layers that are not lazy"
    )


def residual_dropped(codec: str, worker: int, why: str) -> str:
    return f"what the codec {codec} had left out of worker {worker}'s gradients is dropped: {why}"


# All-reduce


def new_parameter(model: str, shape: Sequence[int]) -> str:
    return (
        f"{model} has a new parameter of shape {list(shape)} since run.model; "
        "change a model before it is handed over, or hand over the new one"
    )


def gradient_came_twice(parameter: str, model: str) -> str:
    return (
        f"the gradient of {parameter!r} of {model} came twice in one backward(), as it "
        "does where a layer is checkpointed in several places; use checkpoint(..., use_reentrant=False)"
    )


# Parameter server: models and optimizers

NO_OPTIMIZER = "no optimizer with trainable parameters was handed to run.optimizer before the loop"
OPTIMIZER_TOO_LATE = (
    "an optimizer was handed to run.optimizer after the first loop over batches; with --strategy "
    "parameter-server hand over all of them before it, or use --strategy all-reduce"
)


def model_too_late(model: str) -> str:
    return (
        f"{model} was handed to run.model after a loop over batches had begun; with --strategy parameter-server "
        "hand over all models before the first loop, or use --strategy all-reduce"
    )


def parameter_too_late(shape: Sequence[int]) -> str:
    return (
        f"a parameter of shape {list(shape)} was thawed, or added to an optimizer, after the "
        "first loop had begun, and no server has it; thaw it before, or use --strategy all-reduce"
    )


def in_two_optimizers(shape: Sequence[int]) -> str:
    return (
        f"a parameter of shape {list(shape)} is in two optimizers; with --strategy "
        "parameter-server a server applies one rule to it: give it to one, or use --strategy all-reduce"
    )


def not_served(parameter: str, dtype: str, served: Sequence[str]) -> str:
    """`served`: the dtypes that servers hold."""
    return f"{parameter} is {dtype}; servers hold {', '.join(served)}: leave it out of the optimizer"


def not_of_torch(optimizer: type) -> str:
    return (
        f"{optimizer.__module__}.{optimizer.__name__} is not an optimizer of torch.optim, and no code is sent to "
        "servers; use one of torch's, or --strategy all-reduce, which takes any"
    )


def no_number(name: str, value: object) -> str:
    return (
        f"the optimizer's group has {name}={value!r}, a {type(value).__name__}; servers are sent numbers only: "
        "remove it from the group, or use --strategy all-reduce"
    )


# Parameter server: steps


def second_step(optimizer: int, step: int) -> str:
    return (
        f"optimizer {optimizer} takes a second step in step {step}; with --strategy "
        "parameter-server an iteration makes one update: call backward() and step() once, or use --strategy all-reduce"
    )


def second_gradient(parameter: str, step: int) -> str:
    return (
        f"{parameter} got a second gradient in step {step}, after the first was sent to the servers; "
        "add the losses up and call backward() once, use run.batches(accumulate=...), or --strategy all-reduce"
    )


def gradient_changed(parameter: str) -> str:
    return (
        f"the gradient of {parameter} was changed after backward(), when it had left for the servers; to "
        "clip, write run.optimizer(..., clip_norm=...); for anything else, a gradient scaler too, change the "
        "loss, or use --strategy all-reduce"
    )
