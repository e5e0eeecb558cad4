"""The group of a worker that has not been let in yet: it has a rank and a size to build with, and can do nothing."""

from __future__ import annotations

from typing import NoReturn

import torch

from shoal.collectives.group import Group, Pending, Reduction
from shoal.errors import ShoalError
from shoal.values import Generation, Member


class StandInGroup(Group):
    def __init__(self, rank: int) -> None:
        """As if this worker came in after `rank` others."""
        self.rank = rank
        self.size = rank + 1
        self.generation = 0

    def all_reduce(self, tensor: torch.Tensor, *, label: str, reduction: Reduction = Reduction.SUM) -> Pending:  # noqa: ARG002
        self._refuse(label)

    def reduce_scatter(
        self,
        output: torch.Tensor,  # noqa: ARG002
        tensors: list[torch.Tensor],  # noqa: ARG002
        *,
        label: str,
        reduction: Reduction = Reduction.SUM,  # noqa: ARG002
    ) -> Pending:
        self._refuse(label)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, *, label: str) -> Pending:  # noqa: ARG002
        self._refuse(label)

    def broadcast(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:  # noqa: ARG002
        self._refuse(label)

    def send(self, tensor: torch.Tensor, target: int, *, label: str) -> Pending:  # noqa: ARG002
        self._refuse(label)

    def receive(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:  # noqa: ARG002
        self._refuse(label)

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _refuse(self, label: str) -> NoReturn:
        raise ShoalError(f"{label!r} was begun by a worker that is in no generation yet")


def stand_in_generation(me: Member, current: Generation | None) -> Generation:
    """The current generation as if this worker were its last member; number 0, which no generation has."""
    others = () if current is None else current.members
    return Generation(
        number=0,
        members=(*others, me),
        schedule="auto" if current is None else current.schedule,
        codec="identity" if current is None else current.codec,
        reason="waiting to be let in",
    )
