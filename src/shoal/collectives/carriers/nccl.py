"""NCCL as a carrier: torch's library between GPUs. Every rank has a GPU of its own.

CPU tensors go to the GPU and back. Untested: this carrier needs several GPUs, see docs/carriers.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import Work as TorchWork

from shoal.collectives import texts
from shoal.collectives.carriers.carrier import CarrierFailed, Work
from shoal.collectives.carriers.torch_carrier import FORM_SECONDS, MeetingPoint, TorchCarrier
from shoal.collectives.group import Reduction
from shoal.errors import UsageError
from shoal.transport.memory.neighbours import Exchange

POLL_SECONDS = 50e-6
_REDUCTIONS = (Reduction.SUM, Reduction.MAX, Reduction.MIN, Reduction.PRODUCT)
_TYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


class NcclCarrier(TorchCarrier):
    name = "NCCL"
    takes_gpu = True

    def __init__(self, exchange: Exchange, rank: int, size: int, host: str) -> None:
        """Called by all ranks. `host`: an address of this rank that the others can reach."""
        _check_gpus(exchange)
        self._device = torch.device("cuda", torch.cuda.current_device())
        meeting = MeetingPoint(exchange, rank, host)
        super().__init__(_process_group(meeting, rank, size), rank)
        try:
            # Ranks meet in their first operation.
            self.all_reduce(torch.zeros(1, device=self._device), Reduction.SUM).wait(FORM_SECONDS)
        except RuntimeError as error:
            raise CarrierFailed(str(error)) from None
        exchange(b"")  # all have met: the meeting point may go

    def reduces(self, dtype: torch.dtype, reduction: Reduction) -> bool:
        return dtype in _TYPES and reduction in _REDUCTIONS

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        there = tensor.to(self._device)
        return _Fetched(super().all_reduce(there, reduction), tensor, there)

    def reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: Sequence[int], reduction: Reduction
    ) -> Work:
        there = torch.empty_like(output, device=self._device)
        return _Fetched(super().reduce_scatter(there, whole.to(self._device), counts, reduction), output, there)

    def all_gather(self, whole: torch.Tensor, counts: Sequence[int], tensor: torch.Tensor) -> Work:
        there = torch.empty_like(whole, device=self._device)
        return _Fetched(super().all_gather(there, counts, tensor.to(self._device)), whole, there)

    def all_to_all(
        self, received: torch.Tensor, received_counts: Sequence[int], sent: torch.Tensor, sent_counts: Sequence[int]
    ) -> Work:
        there = torch.empty_like(received, device=self._device)
        work = super().all_to_all(there, received_counts, sent.to(self._device), sent_counts)
        return _Fetched(work, received, there)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        there = tensor.to(self._device)
        return _Fetched(super().broadcast(there, source), tensor, there)

    def abort(self) -> None:
        if self._backend is not None:
            self._backend.abort()

    def _is_done(self, work: TorchWork, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        try:
            while not work.is_completed():
                if time.monotonic() >= limit:
                    return False
                time.sleep(POLL_SECONDS)
            work.wait()
        except RuntimeError as error:
            raise CarrierFailed(str(error)) from None
        return True


class _Fetched(Work):
    """Fetches the results from the GPU once they are complete."""

    def __init__(self, work: Work, tensor: torch.Tensor, there: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor
        self._there = there

    def wait(self, seconds: float) -> bool:
        if not self._work.wait(seconds):
            return False
        if self._there is not self._tensor:
            self._tensor.copy_(self._there)
        return True


def _check_gpus(exchange: Exchange) -> None:
    """All ranks raise the same error, so that none waits for a rank without a GPU."""
    own = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else ""
    found = exchange(own.encode())
    without = [rank for rank, uuid in enumerate(found) if not uuid]
    if without or not torch.distributed.is_nccl_available():
        raise UsageError(texts.ranks_without_gpu(without))
    if len(set(found)) < len(found):
        raise UsageError(texts.shared_gpus(len(found), len(set(found))))


def _process_group(meeting: MeetingPoint, rank: int, size: int) -> Any:
    made: Any = torch.distributed.ProcessGroupNCCL  # missing from builds of torch without CUDA
    options = made.Options()
    options._timeout = timedelta(days=1)  # deaths are noticed from the mesh; slowness is no failure
    return made(meeting.store, rank, size, options)
