"""The interface of a carrier: another library that moves the bytes of a group's collectives.

A carrier starts one operation at a time, on flat contiguous tensors, and returns a `Work` to wait for. The caller has
made sure that all ranks are in the same operation with the same sizes (`carried_exchanger`), so an operation finishes
unless a rank dies. Tensors that are moved and not reduced come as bytes. Not here: sends and receives, which use the
group's own mesh, and reductions that a library lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from shoal.collectives.group import Reduction


class CarrierFailed(Exception):
    """A library's own message about a failed operation. It does not say which rank is to blame."""


class Work(ABC):
    """An operation that was started. Used by one thread."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """True if the results are complete, False if they are not in time. Raises `CarrierFailed`."""


class Carrier(ABC):
    """Counts are elements by rank; `whole` tensors hold every rank's part, in order of ranks, without gaps."""

    name: str
    takes_gpu = False  # takes GPU tensors too
    adds_once = True  # every element of an all-reduce is summed on one rank and copied to the others

    @abstractmethod
    def reduces(self, dtype: torch.dtype, reduction: Reduction) -> bool:
        """Whether the library can do this, with the same result as torch."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        """In place."""

    @abstractmethod
    def reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: Sequence[int], reduction: Reduction
    ) -> Work:
        """`output` becomes the reduction of this rank's part of every `whole`; `whole` is undefined afterwards."""

    @abstractmethod
    def all_gather(self, whole: torch.Tensor, counts: Sequence[int], tensor: torch.Tensor) -> Work:
        """Every part of `whole` becomes that rank's tensor."""

    @abstractmethod
    def all_to_all(
        self, received: torch.Tensor, received_counts: Sequence[int], sent: torch.Tensor, sent_counts: Sequence[int]
    ) -> Work:
        """Part r of `received` becomes this rank's part of what rank r sent."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Every rank's tensor becomes the source's."""

    @abstractmethod
    def abort(self) -> None:
        """From any thread: start nothing more. An operation under way ends soon if the library can be woken.

        After `abort`, a `Work` that was given up never touches the memory that it was given.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. Safe to call twice."""
