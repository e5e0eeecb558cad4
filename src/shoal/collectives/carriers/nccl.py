"""NCCL as a carrier: torch's library between GPUs, of one machine or of several. Every rank has a GPU of its own.

CPU tensors go to the GPU and back. Untested with several ranks: that needs several GPUs, see docs/carriers.md.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import Work as TorchWork

from shoal.collectives import texts
from shoal.collectives.carriers.carried_exchanger import LOOK_SECONDS
from shoal.collectives.carriers.carrier import CarrierFailed, Work
from shoal.collectives.carriers.gpu_facts import current_gpu, facts_of, own_facts
from shoal.collectives.carriers.torch_carrier import CarrierPlace, MeetingPoint, TorchCarrier
from shoal.collectives.gpu.carrier_choice import why_not_nccl
from shoal.collectives.group import Reduction
from shoal.errors import UsageError
from shoal.transport.memory.neighbours import Exchange

POLL_SECONDS = 50e-6
START_SECONDS = 60.0  # for all ranks to connect
_REDUCTIONS = (Reduction.SUM, Reduction.MAX, Reduction.MIN, Reduction.PRODUCT)
_TYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


class NcclCarrier(TorchCarrier):
    name = "NCCL"
    takes_gpu = True

    def __init__(
        self, exchange: Exchange, place: CarrierPlace, device: torch.device, check: Callable[[], None]
    ) -> None:
        """Called by all ranks, each with its own GPU. `check` raises if a rank is gone, or if nobody waits any more."""
        self._device = device
        try:
            meeting = MeetingPoint(exchange, place.rank, place.address)
            super().__init__(_process_group(meeting, place), place.rank)
        except RuntimeError as error:
            raise CarrierFailed(str(error)) from None
        run_watched(self._meet, check, START_SECONDS)
        exchange(b"")  # all have met: the meeting point may go

    def _meet(self) -> None:
        """Ranks connect in their first operation."""
        with torch.cuda.device(self._device):
            self.all_reduce(torch.zeros(1, device=self._device), Reduction.SUM).wait(START_SECONDS)

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


def required_gpu(exchange: Exchange) -> torch.device:
    """This rank's GPU. If NCCL cannot work between the ranks, all raise the same error, so that none waits."""
    device = current_gpu()
    why_not = why_not_nccl(facts_of(exchange(own_facts(device))))
    if why_not or device is None:
        raise UsageError(texts.nccl_impossible(why_not))
    return device


def run_watched(work: Callable[[], None], check: Callable[[], None], seconds: float) -> None:
    """Run `work` in a thread of its own, and raise what `check` raises meanwhile: then the thread is left to itself.

    A rank that waits in NCCL for one that never comes can be neither woken nor stopped (NCCL 2.28, torch 2.11), but
    another group can be made beside it. Raises `CarrierFailed` if `work` fails, or takes longer than `seconds`.
    """
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="shoal-nccl-start", daemon=True).start()
    limit = time.monotonic() + seconds
    while True:
        try:
            error = outcome.get(timeout=LOOK_SECONDS)
            break
        except queue.Empty:
            check()
            if time.monotonic() > limit:
                raise CarrierFailed(f"it did not start within {seconds:.0f} s") from None
    if isinstance(error, RuntimeError):
        raise CarrierFailed(str(error)) from None
    if error is not None:
        raise error


def _process_group(meeting: MeetingPoint, place: CarrierPlace) -> Any:
    made: Any = torch.distributed.ProcessGroupNCCL  # missing from builds of torch without CUDA
    options = made.Options()
    options._timeout = timedelta(days=1)  # deaths are noticed from the mesh; slowness is no failure
    return made(meeting.store, place.rank, place.size, options)
