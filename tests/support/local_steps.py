"""A strategy as an example for whoever adds one: each worker takes steps of its own, and every so many of them all
workers take the mean of their parameters and of what their optimizers remember.

A package offers it by an entry point (`support.offers`), its settings are in `local_steps_settings`. Its manners say
that workers meet in each step that is a multiple of `every`, and that steps between two meetings count together or not
at all. What losses, newcomers, stops, checkpoints and the end of a loop ask for follows from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from shoal.collectives.group import Group
from shoal.errors import ExchangeFailed
from shoal.job_config import JobConfig
from shoal.manners import Manners
from shoal.parameters.client.parameter_client import ParameterClient
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Iteration, Strategy, waiting


class LocalSteps(Strategy):
    def __init__(self, replica: Replica, manners: Manners) -> None:
        self.manners = manners
        self._replica = replica
        self._iteration: Iteration | None = None
        self._optimizers: Sequence[torch.optim.Optimizer] = ()
        self._hooks: list[Any] = []

    # Gradients stay where they are

    def attach(self, model: nn.Module, name: str) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(self._scaled))

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """By this worker's part of the step's samples, so that the mean over workers is one over samples.

        A worker without samples computes on a stand-in, whose gradient does not count.
        """
        iteration = self._iteration
        if iteration is None or not iteration.step_samples:
            return gradient  # backward outside a loop: the script's own business
        share = iteration.weight * self._replica.peers.group.size / iteration.step_samples
        return gradient * share if share else torch.zeros_like(gradient)

    def watches(self, parameter: torch.Tensor) -> bool:
        return True

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer], *, step: int, holds_state: bool) -> None:
        self._optimizers = optimizers

    def begin(self, iteration: Iteration) -> None:
        self._iteration = iteration

    def end(self) -> None:
        self._iteration = None

    def rebind(self) -> None:
        self._iteration = None

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # Where workers meet

    def finish(self, iteration: Iteration) -> None:
        if not iteration.meets or iteration.breakage is not None:
            return
        try:
            with torch.no_grad(), waiting(iteration, self._replica.peers):
                self._meet(iteration, self._replica.peers.group)
        except ExchangeFailed as failure:
            iteration.mark_void("mean of all replicas", failure)

    def _meet(self, iteration: Iteration, group: Group) -> None:
        """The votes of all workers, then the mean of their buffers, parameters and optimizers."""
        label, board, buffers = f"step {iteration.step}, mean", self._replica.board, self._replica.buffers
        note = board.write(1.0, buffers.changed())
        group.all_reduce(note.vector, label=label).wait()
        averaging = buffers.launch(group, board.read(note).changed, weight=1.0 / group.size, label=label)
        for number, tensor in enumerate(self._floats()):
            total = tensor / group.size
            group.all_reduce(total, label=f"{label}, tensor {number}").wait()
            tensor.copy_(total)
        averaging.finish()
        iteration.exchanges += 1

    def _floats(self) -> list[torch.Tensor]:
        """Everything in which replicas may differ, in the same order on every worker."""
        found = [parameter.detach() for model in self._replica.models.values() for parameter in model.parameters()]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    found += [state[name] for name in sorted(state) if _is_float(state[name])]
        return found


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def make(replica: Replica, config: JobConfig, servers: ParameterClient | None) -> LocalSteps:
    return LocalSteps(replica, config.manners)
