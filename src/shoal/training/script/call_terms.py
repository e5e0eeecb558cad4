"""What each call of `run` says, as names and values in words: the terms that all workers' scripts must have in common.

Left out is what may differ from worker to worker (processes that load data, how a fused optimizer computes) and what
changes by itself, such as a learning rate: a newcomer takes that with the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from shoal.data.feed import Feed
from shoal.strategies.replica.model_check import describe
from shoal.terms import SAMPLE, SampleHashes
from shoal.training.loop.loop_task import LoopTask
from shoal.training.watched import Kept
from shoal.values import Cursor

Term = tuple[str, object]
LENGTH, FILES = "number of samples", "list of files"
DATA_TERMS = frozenset((LENGTH, FILES, SAMPLE))  # differ where a worker was given other data

# Values of an optimizer's group that schedules change, that depend on the number of workers in many scripts, or that
# only choose an implementation.
OWN_SETTINGS = frozenset(
    ("params", "lr", "initial_lr", "max_lr", "min_lr", "foreach", "fused", "capturable", "differentiable")
)


def model_terms(model: nn.Module) -> Iterator[Term]:
    """Tensors come first, so that for a model of another size the first tensor of another shape is named."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for kind, name, shape, dtype in describe(model):
        yield f"{kind} {name!r}", f"{list(shape)} {dtype}" + (", frozen" if name in frozen else "")
    for name, module in model.named_modules():
        yield f"module {name!r}" if name else "class", _module(module)


def _module(module: nn.Module) -> str:
    """A module's class, and the settings of torch's own modules: what others print may name a rank or an address."""
    kind = type(module).__qualname__
    return f"{kind}({module.extra_repr()})" if type(module).__module__.startswith("torch.nn.") else kind


def optimizer_terms(
    optimizer: torch.optim.Optimizer, clip_norm: float | None, names: Mapping[int, str]
) -> Iterator[Term]:
    """`names` are those of parameters by their id."""
    yield "class", type(optimizer).__qualname__
    yield "clip_norm", clip_norm
    yield "groups", len(optimizer.param_groups)
    for number, group in enumerate(optimizer.param_groups, start=1):
        for name in sorted(set(group) - OWN_SETTINGS):
            if _is_plain(group[name]):
                yield f"{name} of group {number}", group[name]
        parameters = group["params"]
        yield f"parameters of group {number}", len(parameters)
        for place, parameter in enumerate(parameters, start=1):
            yield f"parameter {place} of group {number}", names.get(id(parameter), f"{list(parameter.shape)}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str)


def kept_terms(things: Mapping[str, Kept]) -> Iterator[Term]:
    for name, thing in things.items():
        yield name, type(thing).__qualname__


def data_terms(feed: Feed) -> Iterator[Term]:
    yield "batch size", feed.batch_size
    yield LENGTH, "unknown" if feed.samples is None else feed.samples
    yield "order of samples", feed.order
    yield "drop_last", feed.drop_last
    yield "own_data", feed.own_data
    if feed.files and not feed.own_data:  # folders may differ from machine to machine
        yield FILES, ", ".join(feed.files)


def data_samples(feed: Feed) -> SampleHashes:
    """What a newcomer compares of the data themselves. Nothing of a stream, of which it would read the start again."""
    return () if feed.own_data or feed.is_stream else feed.fingerprint(Cursor()).hashes


def loop_terms(task: LoopTask) -> Iterator[Term]:
    yield from data_terms(task.feed)
    yield "number of epochs", "as many as the steps take" if task.total_epochs is None else task.total_epochs
    yield "number of steps", "no limit" if task.steps is None else task.steps
    yield "accumulate", task.accumulate
    yield "first epoch", task.first_epoch + 1
    yield "epochs of this loop", "any" if task.total_epochs is None else task.epochs


def resume_difference(
    then: Mapping[str, str], now: Mapping[str, str], *, is_inside: bool
) -> tuple[str, str, str] | None:
    """A term that must be what it was when the checkpoint was made: its name, the value then and the value now.

    The place in the data is counted in samples, so batches, accumulation and the number of workers may change, and so
    may the end of the loop. `is_inside`: some samples of an epoch are used and others are not; which ones depends on
    their number and their order.
    """
    fixed = ("first epoch", LENGTH, "order of samples") if is_inside else ("first epoch",)
    for name in fixed:
        if name in then and then[name] != now[name]:
            return name, then[name], now[name]
    return None
