"""The group of a worker that is in no generation yet: it has a rank and a size, and can do nothing.

A newcomer's script may ask for both while it is being built. What it is told is where it would be if it came in now.
"""
# ruff: noqa: ARG002  the interface's arguments, of operations that are all refused

from __future__ import annotations

from typing import NoReturn

import torch

from shoal.collectives.group import Group, Pending, Reduction
from shoal.errors import ShoalError


class StandInGroup(Group):
    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.generation = 0

    def all_reduce(self, tensor: torch.Tensor, *, label: str, reduction: Reduction = Reduction.SUM) -> Pending:
        self._refuse(label)

    def reduce_scatter(
        self, output: torch.Tensor, tensors: list[torch.Tensor], *, label: str, reduction: Reduction = Reduction.SUM
    ) -> Pending:
        self._refuse(label)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, *, label: str) -> Pending:
        self._refuse(label)

    def broadcast(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        self._refuse(label)

    def send(self, tensor: torch.Tensor, target: int, *, label: str) -> Pending:
        self._refuse(label)

    def receive(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        self._refuse(label)

    def abort(self, reason: str) -> None:
        """There is nothing in flight."""

    def close(self) -> None:
        """There is nothing to release."""

    def _refuse(self, label: str) -> NoReturn:
        raise ShoalError(f"{label} was started by a worker that is in no generation yet")
