"""What a script has handed over, in program order, and what is kept for it until it hands over more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from shoal.training.mistakes.gradient_watch import GradientWatch


class Kept(Protocol):
    """An object given to `run.keep`: schedulers, scalers, counters."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Watched:
    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.kept: dict[str, Kept] = {}
        self.gradients = GradientWatch()
        self._weights: Mapping[str, Mapping[str, torch.Tensor]] | None = None  # by model: what training starts from
        self._kept_before: dict[str, Any] = {}  # states of objects that a resumed script has not handed over yet

    def add_model(self, name: str, model: nn.Module) -> None:
        self.models[name] = model

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)

    def keep(self, name: str, thing: Kept) -> None:
        """A resumed script that hands an object over inside its loop gets the object's state back here."""
        self.kept[name] = thing
        if (before := self._kept_before.pop(name, None)) is not None:
            thing.load_state_dict(before)

    def start_from(self, weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Training starts from imported weights, by model."""
        self._weights = weights

    def weights_of(self, name: str) -> Mapping[str, torch.Tensor] | None:
        """What a model starts from; None where nothing was imported."""
        return None if self._weights is None else self._weights.get(name, {})

    def load_kept(self, states: Mapping[str, Any]) -> None:
        """Load states of kept objects, by name; hold those of objects that the script has yet to hand over."""
        for name, thing in self.kept.items():
            thing.load_state_dict(states[name])
        self._kept_before = {name: state for name, state in states.items() if name not in self.kept}
