"""The all-reduce strategy: every step, all workers' gradients are averaged by samples and all apply the same update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from shoal.job_config import JobConfig
from shoal.manners import Manners
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.strategies.all_reduce.gradient_exchange import GradientExchange, Shared
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Iteration, Strategy

if TYPE_CHECKING:
    from shoal.parameters.client.parameter_client import ParameterClient


class AllReduce(Strategy):
    manners = Manners()

    def __init__(self, replica: Replica, settings: AllReduceSettings) -> None:
        self._peers = replica.peers
        self._shared = Shared(replica.board, replica.buffers, owners={}, group_bytes=int(settings.bucket_mb * 2**20))
        self._exchanges: list[GradientExchange] = []

    def attach(self, model: nn.Module, name: str) -> None:
        self._exchanges.append(GradientExchange(model, name, self._shared))

    def begin(self, iteration: Iteration) -> None:
        for exchange in self._exchanges:
            exchange.begin(iteration, self._peers.group)

    def end(self) -> None:
        for exchange in self._exchanges:
            exchange.end()

    def watches(self, parameter: torch.Tensor) -> bool:
        owner = self._shared.owners.get(id(parameter))
        return owner is not None and owner.watches(parameter)

    def rebind(self) -> None:
        for exchange in self._exchanges:
            exchange.rebind()

    def state(self) -> dict[str, Any]:
        """By model: names of parameters, in the order in which their gradients travel."""
        return {"orders": {exchange.name: exchange.order for exchange in self._exchanges}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        orders = state.get("orders", {})
        for exchange in self._exchanges:
            exchange.follow(orders.get(exchange.name, ()))

    def detach(self) -> None:
        for exchange in self._exchanges:
            exchange.detach()
        self._exchanges = []
        self._shared.owners.clear()


def make(replica: Replica, config: JobConfig, servers: ParameterClient | None) -> AllReduce:  # noqa: ARG001  of no use here
    return AllReduce(replica, config.of(AllReduceSettings))
