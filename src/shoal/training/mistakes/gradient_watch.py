"""Models that get gradients in a loop though no optimizer that was handed over has any of their parameters.

Such a model is not trained, or the script changes it by hand. Hooks are set on the parameters of these models alone,
and go with the step of the first gradient: they cost the optimized models nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn


class GradientWatch:
    def __init__(self) -> None:
        self.touched: set[str] = set()  # models that got a gradient and were not asked for since
        self._hooks: dict[str, list[Any]] = {}  # by model
        self._told: set[str] = set()

    def watch(self, models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """A loop begins: look out for gradients of models that nobody optimizes."""
        self.release()
        for name in unoptimized(models, optimizers) - self._told:
            count = partial(self._count, name)
            self._hooks[name] = [
                parameter.register_post_accumulate_grad_hook(count)
                for parameter in models[name].parameters()
                if parameter.requires_grad
            ]

    def take(self, models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
        """Names of models that got gradients and are still in no optimizer; each is named once."""
        found = sorted(self.touched & unoptimized(models, optimizers))
        self._told |= self.touched
        for name in self.touched:
            self._let_go(name)
        self.touched = set()
        return found

    def release(self) -> None:
        for name in tuple(self._hooks):
            self._let_go(name)
        self.touched = set()

    def _count(self, name: str, _parameter: torch.Tensor) -> None:
        """Hooks stay until `take`: torch is going through them."""
        self.touched.add(name)

    def _let_go(self, name: str) -> None:
        for hook in self._hooks.pop(name, ()):
            hook.remove()


def unoptimized(models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> set[str]:
    """Models none of whose parameters is in any of the optimizers."""
    known = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    return {name for name, model in models.items() if not any(id(each) in known for each in model.parameters())}
