"""This worker's replica of the models, and how all workers agree on it where they meet.

A meeting carries everybody's votes, averages the buffers that changed, and compares the replicas where that is asked
for. Every strategy uses it; how gradients become updates is the strategy's own business.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import torch
from torch import nn

from shoal.bounds import Text
from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.errors import WorkersDisagree
from shoal.strategies.peers.peers import Peers
from shoal.strategies.replica.buffers import BufferAverage
from shoal.strategies.replica.model_check import broadcast_model, check_same_model, digest
from shoal.strategies.replica.votes import DIGEST_LIMIT, Agreement, VoteBoard, Votes


class Replica:
    """The models that the script handed over, in program order."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.votes = Votes()
        self.board = VoteBoard(peers, self.votes)
        self.buffers = BufferAverage()
        self.models: dict[str, nn.Module] = {}
        self.compared: int | None = None  # digest of the parameters in the last meeting, where replicas were compared

    def add(self, model: nn.Module, name: str) -> None:
        self.models[name] = model
        self.buffers.add(model)

    def unify(self, model: nn.Module, name: str) -> None:
        """Check that all workers have the same model, and give all the same weights. Raises ExchangeFailed."""
        check_same_model(model, name, self.peers.group, self.peers.generation)
        broadcast_model(model, name, self.peers.group)
        self.replaced()

    def agree(self, point: str, *, compare: bool = False, terms: int = 0) -> Agreement:
        """Meet all workers at a point of the script that all must pass. Raises ExchangeFailed or WorkersDisagree.

        Changed buffers are averaged on the way. With `compare` the replicas must be equal, bit for bit. `terms` is a
        number below 2**40 that stands for what the script has called so far.
        """
        group = self.peers.group
        self.compared = None
        self.buffers.refresh()
        if not self._meet(point, self.buffers.changed(), terms):
            return Agreement(is_same=False)
        if compare and group.size > 1:
            self.compared = self.digest()
            buffers = digest(self.models.values(), of_buffers=True)
            cast = self.board.write(0.0, [], (self.compared * 1_000_003 + buffers) % DIGEST_LIMIT)
            group.all_reduce(cast.vector, label=f"{point}, comparison").wait()
            if not self.board.read(cast).is_same:
                raise WorkersDisagree(
                    f"the replicas have come apart: worker {self.peers.worker} has other parameters or buffers; "
                    "change them through optimizer.step() only, or in the same way on every worker"
                )
        return Agreement(stop=self._stop_reason() if self.votes.stop_seen else None)

    def _meet(self, point: str, changed: list[bool], terms: int) -> bool:
        """Exchange votes; buffers that changed since the last exchange are averaged, each worker counting once.

        Returns whether all workers have the same `terms`; where they have not, no buffer is touched.
        """
        group = self.peers.group
        cast = self.board.write(1.0, changed, terms)
        group.all_reduce(cast.vector, label=point).wait()
        reading = self.board.read(cast)
        if group.size > 1 and reading.is_same:
            with torch.no_grad():
                self.buffers.launch(group, reading.changed, weight=1.0 / group.size, label=point).finish()
        return reading.is_same

    def _stop_reason(self) -> str:
        """Some worker votes for a stop and all know it: take the reason of the lowest rank that has one."""
        group = self.peers.group
        mine = self.votes.stop or self.peers.stop_wish()
        has_reason = torch.zeros(group.size, dtype=torch.uint8)
        has_reason[group.rank] = mine is not None
        group.all_reduce(has_reason, label="who wants to stop").wait()
        source = int(has_reason.argmax().item())
        data = broadcast_bytes(msgspec.msgpack.encode(mine or ""), source, group, label="reason for stopping")
        return msgspec.msgpack.decode(data, type=Text)

    def digest(self, names: Collection[str] | None = None) -> int:
        """A number that differs, almost surely, where any bit of any parameter differs. Below 2**40.

        Where `names` are given, only of these models, in the order in which they were added.
        """
        chosen = [model for name, model in self.models.items() if names is None or name in names]
        return digest(chosen) % DIGEST_LIMIT

    def replaced(self) -> None:
        """Parameters and buffers were copied from a member: all have agreed on their present values."""
        self.buffers.refresh()
        self.buffers.remember()

    def release(self) -> None:
        """Let go of all models."""
        self.models = {}
        self.buffers = BufferAverage()
