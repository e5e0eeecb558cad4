"""MPI as a carrier, through mpi4py: every process is an MPI world of its own, and a generation connects its worlds.

So members may come and go, although MPI's own worlds are fixed. An MPI operation that waits for a dead process can be
neither woken nor cancelled, only given up. MPI may still write to its memory while later operations run, so operations
work on copies. Not here: how MPI starts (`mpi_world`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.collectives.carriers.carrier import Carrier, CarrierFailed, Work
from shoal.collectives.carriers.mpi_world import CONNECT_SECONDS, give_up, mpi
from shoal.collectives.group import Reduction
from shoal.transport.memory.neighbours import Exchange

LOOK_SECONDS = 0.01  # between two checks for lost ranks while worlds connect
POLL_SECONDS = 20e-6  # MPI moves bytes only while it is polled
_TYPES = {
    torch.uint8: "UINT8_T",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
}
_OPERATIONS = {
    Reduction.SUM: "SUM",
    Reduction.MAX: "MAX",
    Reduction.MIN: "MIN",
    Reduction.PRODUCT: "PROD",
    Reduction.AND: "BAND",
    Reduction.OR: "BOR",
    Reduction.XOR: "BXOR",
}


class MpiCarrier(Carrier):
    name = "MPI"
    adds_once = False  # recursive doubling: both ranks of a pair add, each with its own value first

    def __init__(self, exchange: Exchange, rank: int, size: int, check: Callable[[], None]) -> None:
        """All ranks call it. `check` raises if a rank is gone."""
        self._mpi = mpi()
        self._check = check
        self.is_aborted = False
        self._communicator: Any = self._connect(exchange, rank, size)  # mpi4py has no type for it
        self._meet(size)

    def reduces(self, dtype: torch.dtype, reduction: Reduction) -> bool:  # noqa: ARG002  all of them
        return dtype in _TYPES

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        copy = tensor.clone()
        return self._start(
            lambda: self._communicator.Iallreduce(self._mpi.IN_PLACE, self._place(copy), self._operation(reduction)),
            (tensor, copy),
        )

    def reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: Sequence[int], reduction: Reduction
    ) -> Work:
        copy = torch.empty_like(output)
        return self._start(
            lambda: self._communicator.Ireduce_scatter(
                self._place(whole), self._place(copy), list(counts), self._operation(reduction)
            ),
            (output, copy),
            whole,
        )

    def all_gather(self, whole: torch.Tensor, counts: Sequence[int], tensor: torch.Tensor) -> Work:
        copy, sent = torch.empty_like(whole), tensor.clone()
        return self._start(
            lambda: self._communicator.Iallgatherv(self._place(sent), self._parts(copy, counts)), (whole, copy), sent
        )

    def all_to_all(
        self, received: torch.Tensor, received_counts: Sequence[int], sent: torch.Tensor, sent_counts: Sequence[int]
    ) -> Work:
        copy = torch.empty_like(received)
        return self._start(
            lambda: self._communicator.Ialltoallv(self._parts(sent, sent_counts), self._parts(copy, received_counts)),
            (received, copy),
            sent,
        )

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        copy = tensor.clone()
        return self._start(lambda: self._communicator.Ibcast(self._place(copy), source), (tensor, copy))

    def abort(self) -> None:
        self.is_aborted = True  # MPI cannot be woken: its operations are given up; they work on copies

    def close(self) -> None:
        """Keep the communicator until the process ends: freeing it would be a collective operation."""

    def _connect(self, exchange: Exchange, rank: int, size: int) -> Any:
        """Connect one world after the other to rank 0's, in order of ranks."""
        mpi = self._mpi
        try:
            port = exchange(mpi.Open_port().encode() if rank == 0 else b"")[0].decode()
            joined = mpi.COMM_SELF.Dup()
            for newcomer in range(1, size):
                if rank <= newcomer:
                    joined = self._join(joined, port, is_new=rank == newcomer)
                exchange(b"")  # now it is the next world's turn
            if rank == 0:
                mpi.Close_port(port)
        except mpi.Exception as error:
            raise CarrierFailed(" ".join(str(error).split())) from None
        return joined

    def _join(self, joined: Any, port: str, *, is_new: bool) -> Any:
        """Connect one more world, in a thread of its own: nothing wakes MPI if the other side does not come."""
        found: list[Any] = []

        def join() -> None:
            try:
                connect = joined.Connect if is_new else joined.Accept
                found.append(connect(port, self._mpi.INFO_NULL, 0).Merge(high=is_new))
            except self._mpi.Exception as error:
                found.append(error)

        thread = threading.Thread(target=join, name="shoal-mpi", daemon=True)
        thread.start()
        while not found:
            thread.join(LOOK_SECONDS)
            try:
                self._check()
            except BaseException:
                if thread.is_alive():
                    give_up()
                raise
        thread.join()
        if isinstance(found[0], Exception):
            raise found[0]
        found[0].Set_errhandler(self._mpi.ERRORS_RETURN)
        return found[0]

    def _meet(self, size: int) -> None:
        """Connect every pair of ranks before the first operation: a rank may be gone right after its last one."""
        sent, received = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
        if not self.all_to_all(received, [1] * size, sent, [1] * size).wait(CONNECT_SECONDS):
            raise CarrierFailed(f"not all of {size} ranks have met within {CONNECT_SECONDS} seconds")

    def _start(self, start: Callable[[], Any], result: tuple[torch.Tensor, torch.Tensor], *kept: torch.Tensor) -> Work:
        if self.is_aborted:
            raise CarrierFailed("it was stopped")
        try:
            return _Request(start(), self, result, kept)
        except self._mpi.Exception as error:
            raise CarrierFailed(str(error)) from None

    def is_whole(self, request: Any) -> bool:
        """Whether a request is complete. Also makes MPI move bytes, of this operation and of others."""
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            raise CarrierFailed(str(error)) from None

    def _place(self, tensor: torch.Tensor) -> list[Any]:
        memory = self._mpi.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)
        return [memory, tensor.numel(), getattr(self._mpi, _TYPES[tensor.dtype])]

    def _parts(self, tensor: torch.Tensor, counts: Sequence[int]) -> list[Any]:
        memory, _, kind = self._place(tensor)
        return [memory, list(counts), kind]

    def _operation(self, reduction: Reduction) -> Any:
        return getattr(self._mpi, _OPERATIONS[reduction])


_unfinished: set[Work] = set()  # kept alive, even if given up: MPI may still use their memory


class _Request(Work):
    def __init__(
        self,
        request: Any,
        carrier: MpiCarrier,
        result: tuple[torch.Tensor, torch.Tensor],
        kept: Sequence[torch.Tensor],
    ) -> None:
        """`result`: the tensor to fill, and the copy that it is filled from once the request is complete."""
        self._request = request
        self._carrier = carrier
        self._target, self._copy = result
        self._kept = kept  # memory that MPI reads
        _unfinished.add(self)

    def wait(self, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while not self._carrier.is_whole(self._request):
            if self._carrier.is_aborted:
                self._target = self._copy  # keep only the copy alive
                raise CarrierFailed("it was stopped")
            if time.monotonic() >= limit:
                return False
            time.sleep(POLL_SECONDS)
        _unfinished.discard(self)
        self._target.copy_(self._copy)
        return True
