"""The all-reduce strategy: every step, all workers' gradients are averaged by samples and all apply the same update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shoal.strategies.gradient_exchange import GradientExchange, Shared
from shoal.strategies.meeting import MeetingStrategy
from shoal.strategies.model_check import broadcast_model, check_same_model
from shoal.strategies.peers import Peers
from shoal.strategies.strategy import Iteration


@dataclass(frozen=True)
class AllReduceConfig:
    bucket_bytes: int  # gradients travel in groups of about this size


class AllReduce(MeetingStrategy):
    def __init__(self, peers: Peers, config: AllReduceConfig) -> None:
        super().__init__(peers)
        self._shared = Shared(self._board, self._buffers, owners={}, group_bytes=config.bucket_bytes)
        self._exchanges: list[GradientExchange] = []

    def attach(self, model: nn.Module, name: str) -> None:
        self._models[name] = model
        self._buffers.add(model)
        self._exchanges.append(GradientExchange(model, name, self._shared))

    def unify(self, model: nn.Module, name: str) -> None:
        check_same_model(model, name, self._peers.group, self._peers.generation)
        broadcast_model(model, name, self._peers.group)
        self.state_replaced()

    def begin(self, iteration: Iteration) -> None:
        self._buffers.refresh()
        for exchange in self._exchanges:
            exchange.begin(iteration, self._peers.group)

    def end(self) -> None:
        for exchange in self._exchanges:
            exchange.end()

    def watches(self, parameter: torch.Tensor) -> bool:
        owner = self._shared.owners.get(id(parameter))
        return owner is not None and owner.watches(parameter)

    def rebind(self) -> None:
        super().rebind()
        for exchange in self._exchanges:
            exchange.rebind()

    def orders(self) -> dict[str, list[str]]:
        return {exchange.name: exchange.order for exchange in self._exchanges}

    def follow(self, orders: Mapping[str, Sequence[str]]) -> None:
        for exchange in self._exchanges:
            exchange.follow(orders.get(exchange.name, ()))

    def detach(self) -> None:
        super().detach()
        for exchange in self._exchanges:
            exchange.detach()
        self._exchanges = []
        self._shared.owners.clear()
