"""What servers are told of a script's models and optimizers: a table of tensors, and rules by name.

Refuses what cannot be taken apart: see `parameters.server.updates.update_rules`. Parameters that are in no optimizer,
or frozen when the first loop begins, stay on the workers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shoal.errors import ServerRefused, UsageError
from shoal.parameters.blocks.table_blocks import block_bytes_for
from shoal.parameters.server.updates.update_rules import check_groups, check_rule, check_table
from shoal.strategies import texts
from shoal.wire.tables import Number, RuleSpec, TableSpec, TensorSpec

KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ServedParameter:
    """One parameter that servers hold."""

    name: str  # "model 1/fc.weight"
    parameter: nn.Parameter
    optimizer: int
    group: int


def entries_of(
    models: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[ServedParameter, ...]:
    """Parameters that servers hold, in the order of the models."""
    places: dict[int, tuple[int, int]] = {}
    for number, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if places.setdefault(id(parameter), (number, index)) != (number, index):
                    raise UsageError(texts.in_two_optimizers(parameter.shape))
    found: dict[int, ServedParameter] = {}
    for name, model in models.items():
        for entry, parameter in model.named_parameters():
            if id(parameter) in places and id(parameter) not in found and parameter.requires_grad:
                found[id(parameter)] = ServedParameter(f"{name}/{entry}", parameter, *places[id(parameter)])
    return tuple(found.values())


def table_of(entries: Sequence[ServedParameter], optimizers: Sequence[torch.optim.Optimizer]) -> TableSpec:
    for entry in entries:
        if entry.parameter.dtype not in KINDS:
            served = [str(kind)[6:] for kind in KINDS]
            raise UsageError(texts.not_served(entry.name, str(entry.parameter.dtype)[6:], served))
    size = sum(entry.parameter.numel() * entry.parameter.element_size() for entry in entries)
    table = TableSpec(
        kind="dense",
        tensors=tuple(
            TensorSpec(
                name=entry.name,
                shape=tuple(entry.parameter.shape),
                dtype=str(entry.parameter.dtype)[6:],
                optimizer=entry.optimizer,
                group=entry.group,
            )
            for entry in entries
        ),
        rules=tuple(RuleSpec(name=rule_name(optimizer), groups=group_values(optimizer)) for optimizer in optimizers),
        block_bytes=block_bytes_for(size),
    )
    with _as_mistakes():
        check_table(table)
    return table


def local_states(
    entries: Sequence[ServedParameter], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, dict[str, torch.Tensor | float]]:
    """States of the script's own optimizers, in a job that is resumed or was trained without servers before.

    In host memory: they are cut into blocks, and each block would be a copy of its own from a device.
    """
    return {
        entry.name: {
            name: value.detach().cpu() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
            if isinstance(value, torch.Tensor | int | float)
        }
        for entry in entries
        if (state := optimizers[entry.optimizer].state.get(entry.parameter))
    }


def rule_name(optimizer: torch.optim.Optimizer) -> str:
    """The class's name, if it is torch's own and can work on parts of tensors. Raises UsageError."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        raise UsageError(texts.not_of_torch(kind))
    name: str = kind.__name__
    with _as_mistakes():
        check_rule(name)
    return name


def step_values(
    table: TableSpec, number: int, optimizer: torch.optim.Optimizer, factor: float
) -> tuple[dict[str, Number], ...]:
    """The values that one optimizer of a table steps with now. Raises UsageError for what no server can run."""
    values = group_values(optimizer, factor)
    with _as_mistakes():
        check_groups(table, number, values)
    return values


def group_values(optimizer: torch.optim.Optimizer, factor: float = 1.0) -> tuple[dict[str, Number], ...]:
    """The present values of an optimizer's groups, with learning rates times `factor`."""
    return tuple(
        {
            name: _plain(name, value) * factor if name == "lr" else _plain(name, value)  # type: ignore[operator]  # lr is a number
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    )


@contextmanager
def _as_mistakes() -> Generator[None, None, None]:
    """Raise what a server would refuse as a mistake of the script, in the same words, before any server is asked."""
    try:
        yield
    except ServerRefused as refusal:
        raise UsageError(str(refusal)) from None


def _plain(name: str, value: Any) -> Number:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, tuple | list) and all(isinstance(one, int | float | torch.Tensor) for one in value):
        return tuple(float(one) for one in value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UsageError(texts.no_number(name, value))
