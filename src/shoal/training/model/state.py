"""The state of a job on one worker, by global names: taken apart for a copy or a checkpoint, and put back.

State is parameters, buffers, optimizer state, kept objects and the place in the data. Parameters of optimizers go by
name, not by number, so that a state says what it is about. Nothing changes in the session before the whole state is
known to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shoal.errors import CheckpointUnusable
from shoal.training import texts
from shoal.training.session import Session
from shoal.values import Cursor
from shoal.wire.tables import Range

MOST_NAMED = 4  # tensors that an error names of each kind of difference


def state_of(session: Session, cursor: Cursor, *, is_whole: bool = False) -> dict[str, Any]:
    """A tree of numbers, strings and tensors; the tensors are the live ones.

    `is_whole`: with the state of optimizers that servers have.
    """
    names = parameter_names(session)
    served = session.strategy.optimizer_states() if is_whole else None
    return {
        "step": session.step,
        "updates": session.replica.votes.updates,
        "cursor": [cursor.epoch, cursor.position],
        "models": {name: entries_of(model) for name, model in session.watched.models.items()},
        "gradients": {
            name: {entry: _gradient_entry(p.grad) for entry, p in model.named_parameters() if p.grad is not None}
            for name, model in session.watched.models.items()
        },
        "optimizers": [
            _by_name(optimizer, names) | ({} if served is None else {"state": served[number]})
            for number, optimizer in enumerate(session.watched.optimizers)
        ],
        "gaps": [[gap.epoch, gap.start, gap.stop] for gap in session.held.gaps],
        "kept": {name: thing.state_dict() for name, thing in session.watched.kept.items()},
        "strategy": session.strategy.state(),
    }


def entries_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, each once, also where a model has it in two places."""
    return dict([*model.named_parameters(), *model.named_buffers()])


def state_size(session: Session) -> int:
    """Bytes of models and optimizers."""
    tensors = [tensor for model in session.watched.models.values() for tensor in entries_of(model).values()]
    for optimizer in session.watched.optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def parameter_names(session: Session) -> dict[int, str]:
    """By a parameter's id: 'model 1/fc.weight'."""
    return {
        id(parameter): f"{name}/{entry}"
        for name, model in reversed(session.watched.models.items())
        for entry, parameter in model.named_parameters()
    }


def steady_names(session: Session, names: list[str]) -> set[str]:
    """Which of these paths nothing but `optimizer.step()` changes: no parameters that the script trains by hand."""
    optimized = {
        id(parameter)
        for optimizer in session.watched.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = {
        f"models/{name}/{entry}"
        for name, model in session.watched.models.items()
        for entry, parameter in model.named_parameters()
        if id(parameter) in optimized or not parameter.requires_grad
    }
    return {name for name in names if name in parameters or name.startswith("optimizers/")}


def changed_buffers(session: Session) -> dict[str, list[str]]:
    """By model: buffers that the next exchange will average, since the script changed them after the last one."""
    return {
        name: [entry for entry, buffer in model.named_buffers() if session.replica.buffers.is_changed(buffer)]
        for name, model in session.watched.models.items()
    }


def forget_changed(session: Session, state: Mapping[str, Any]) -> None:
    """Mark buffers that had changed in the checkpoint as changed, so that the next step's exchange averages them.

    Call it after the last meeting before that step."""
    for name, model in session.watched.models.items():
        for entry in state.get("changed", {}).get(name, ()):
            session.replica.buffers.forget(model.get_buffer(entry))


def state_dict_keys(session: Session) -> dict[str, dict[str, str]]:
    """By model: which entry of the state each key of its `state_dict()` stands for, for exports."""
    keys: dict[str, dict[str, str]] = {}
    for name, model in session.watched.models.items():
        entries = {id(tensor): entry for entry, tensor in entries_of(model).items()}
        found = model.state_dict(keep_vars=True)
        keys[name] = {key: entries[id(value)] for key, value in found.items() if id(value) in entries}
    return keys


@torch.no_grad()
def load_state(session: Session, state: Mapping[str, Any]) -> Cursor:
    """Load a whole state. Raises CheckpointUnusable, before anything changed, where it does not fit."""
    if found := differences(session, state):
        raise CheckpointUnusable(texts.misfits(found))
    for name, model in session.watched.models.items():
        own = entries_of(model)
        for entry, tensor in state["models"][name].items():
            own[entry].copy_(tensor)
        for entry, parameter in model.named_parameters():
            parameter.grad = _gradient_from(state["gradients"][name].get(entry), parameter)
    for optimizer, values in zip(session.watched.optimizers, state["optimizers"], strict=True):
        _load_optimizer(optimizer, _by_number(optimizer, values, parameter_names(session)))
    session.watched.load_kept(state["kept"])
    session.replica.replaced()
    session.strategy.load_state(state.get("strategy", {}))
    session.replica.votes.take_updates(state["updates"])
    session.held.take(state["step"], tuple(Range(*gap) for gap in state.get("gaps", ())))
    epoch, position = state["cursor"]
    return Cursor(epoch=epoch, position=position)


@torch.no_grad()
def load_buffers(session: Session, state: Mapping[str, Any]) -> None:
    """Load only what a meeting outside loops may have changed: the averaged buffers of models."""
    for name, model in session.watched.models.items():
        for entry, buffer in model.named_buffers():
            if entry in state["models"].get(name, {}):
                buffer.copy_(state["models"][name][entry])
    session.replica.replaced()


@torch.no_grad()
def load_weights(model: nn.Module, name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Load the weights that training starts from, by the keys of the model's `state_dict()`."""
    own = {key: value for key, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    if found := tensor_differences(name, own, weights):
        raise CheckpointUnusable(texts.misfits(found))
    for entry, tensor in weights.items():
        own[entry].copy_(tensor)


def differences(session: Session, state: Mapping[str, Any]) -> list[str]:
    """Why a state does not fit the script, in words; empty where it fits."""
    watched, found = session.watched, []
    for name in sorted(set(watched.models) | set(state["models"])):
        if name not in state["models"]:
            found.append(texts.model_not_in_state(name))
        elif name not in watched.models:
            found.append(texts.model_not_in_script(name))
        else:
            found += tensor_differences(name, entries_of(watched.models[name]), state["models"][name])
    if len(watched.optimizers) != len(state["optimizers"]):
        there, here = len(state["optimizers"]), len(watched.optimizers)
        found.append(texts.optimizers_differ(in_state=there, in_script=here))
    elif not found:
        found += _optimizer_differences(session, state["optimizers"])
    missing = sorted(set(watched.kept) - set(state["kept"]))
    if missing:
        found.append(texts.kept_not_in_state(missing))
    return found


def tensor_differences(model: str, own: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """Which tensors of a model differ in name, shape or dtype."""
    found = []
    for only, text in (
        (sorted(set(other) - set(own)), texts.only_in_state),
        (sorted(set(own) - set(other)), texts.only_in_script),
    ):
        if only:
            more = f" and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
            found.append(f"{model}: {text(', '.join(only[:MOST_NAMED]) + more)}")
    unlike = [
        texts.tensor_differs(entry, in_state=_kind(other[entry]), in_script=_kind(own[entry]))
        for entry in sorted(set(own) & set(other))
        if own[entry].shape != other[entry].shape or own[entry].dtype != other[entry].dtype
    ]
    if unlike:
        more = f", and {len(unlike) - MOST_NAMED} more differ" if len(unlike) > MOST_NAMED else ""
        found.append(f"{model}: {', '.join(unlike[:MOST_NAMED])}{more}")
    return found


def _optimizer_differences(session: Session, states: list[dict[str, Any]]) -> list[str]:
    names, found = parameter_names(session), []
    for number, (optimizer, values) in enumerate(zip(session.watched.optimizers, states, strict=True), start=1):
        own = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        if own != [group["params"] for group in values["groups"]]:
            found.append(texts.optimizer_differs(number))
    return found


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)}"


def _gradient_entry(gradient: torch.Tensor) -> Any:
    """Keep a sparse gradient as it is: made dense and sparse again, it would add up in another order."""
    if not gradient.is_sparse:
        return gradient
    return {
        "indices": gradient._indices(),
        "values": gradient._values(),
        "is_coalesced": gradient.is_coalesced(),
    }


def _gradient_from(entry: Any, parameter: torch.Tensor) -> torch.Tensor | None:
    if isinstance(entry, dict):
        sparse = torch.sparse_coo_tensor(
            entry["indices"], entry["values"], parameter.shape, is_coalesced=entry["is_coalesced"]
        )
        return sparse.to(parameter.device)
    return None if entry is None else _laid_out_as(parameter, entry)


def _laid_out_as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The value in the parameter's memory layout: fused optimizers pair elements by their place in memory."""
    if value.shape != parameter.shape:
        return value
    if value.stride() == parameter.stride():
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _by_name(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """The optimizer's `state_dict`, with names in place of numbers."""
    ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    values = optimizer.state_dict()
    return {
        "state": {ordered[number]: state for number, state in values["state"].items()},
        "groups": [{**group, "params": [ordered[n] for n in group["params"]]} for group in values["param_groups"]],
    }


def _by_number(optimizer: torch.optim.Optimizer, values: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    numbers = {name: number for number, name in enumerate(ordered)}
    return {
        "state": {numbers[name]: state for name, state in values["state"].items()},
        "param_groups": [{**group, "params": [numbers[n] for n in group["params"]]} for group in values["groups"]],
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    """As `load_state_dict`, but without its casts to the parameter's dtype, which change the values of some state."""
    optimizer.load_state_dict(values)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, state in values["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                device = optimizer.state[parameters[index]][name].device  # of torch's choice: counters stay on the CPU
                optimizer.state[parameters[index]][name] = _laid_out_as(parameters[index], value).to(device)
