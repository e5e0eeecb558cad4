"""The all-reduce strategy: every step, all workers' gradients are averaged by samples and all apply the same update."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from torch import nn

from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.strategies.gradient_exchange import GradientExchange
from shoal.strategies.model_check import broadcast_model, check_same_model
from shoal.strategies.notes import NoteBoard
from shoal.strategies.peers import Peers
from shoal.strategies.strategy import Agreement, Iteration, Strategy, Votes


@dataclass(frozen=True)
class AllReduceConfig:
    bucket_bytes: int  # gradients travel in groups of about this size


class AllReduce(Strategy):
    def __init__(self, peers: Peers, config: AllReduceConfig) -> None:
        self._peers = peers
        self._config = config
        self.votes = Votes()
        self._board = NoteBoard(peers, self.votes)
        self._exchanges: list[GradientExchange] = []

    def attach(self, model: nn.Module, name: str) -> None:
        group = self._peers.group
        check_same_model(model, name, group, self._peers.generation)
        broadcast_model(model, name, group)
        self._exchanges.append(GradientExchange(model, name, self._board, bucket_bytes=self._config.bucket_bytes))

    def begin(self, iteration: Iteration) -> None:
        for exchange in self._exchanges:
            exchange.begin(iteration, self._peers.group)

    def agree(self, point: str) -> Agreement:
        note = self._board.write(0.0, [])
        self._peers.group.all_reduce(note.vector, label=point).wait()
        self._board.read(note)
        return Agreement(stop=self._stop_reason() if self.votes.stop_seen else None)

    def _stop_reason(self) -> str:
        """Some worker votes for a stop and all know it: take the reason of the lowest rank that has one."""
        group = self._peers.group
        mine = self.votes.stop or self._peers.stop_wish()
        has_reason = torch.zeros(group.size, dtype=torch.uint8)
        has_reason[group.rank] = mine is not None
        group.all_reduce(has_reason, label="who wants to stop").wait()
        source = int(has_reason.argmax().item())
        data = broadcast_bytes(msgspec.msgpack.encode(mine or ""), source, group, label="reason for stopping")
        return msgspec.msgpack.decode(data, type=str)

    def rebind(self) -> None:
        for exchange in self._exchanges:
            exchange.rebind()
