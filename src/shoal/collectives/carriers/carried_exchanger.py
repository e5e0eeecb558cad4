"""An exchanger whose bytes another library moves, with the agreement and the failures of our own exchangers.

Before each operation all ranks compare what they are about to do: they run the operation's schedule over the group's
own mesh, with headers alone. So ranks in different operations get an error, and the library only ever runs operations
that all ranks agree on. While the library works, the exchanger watches the mesh: it names a rank that dies, and stops
the library. Sends and receives go over the mesh. Not here: the libraries (`gloo`, `nccl`, `mpi`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from shoal.codecs.identity import memory_of
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed, Work
from shoal.collectives.combining import REAL, combine, unify_nans
from shoal.collectives.exchanger import Exchanger, Operation, PointToPoint
from shoal.collectives.group import Reduction
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.executor import Executor, Segment
from shoal.collectives.schedules.schedule import Program
from shoal.errors import ExchangeFailed, PeerLost
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import FrameKind

LOOK_SECONDS = 0.01  # between two checks of the mesh while the library works
BLAME_SECONDS = 2.0  # for the mesh to notice who died, after the library has failed
END_SECONDS = 5.0  # for an operation to end after the library was stopped


class Announced(Segment):
    """A run of elements that ranks compare but do not send: the library moves it."""

    def __init__(self, elements: int) -> None:
        self.tensors, self.pieces, self.elements = [], [], elements


class Carried(Exchanger):
    """The operations. Subclasses say how ranks compare their operations, and how they notice a lost rank."""

    def __init__(self, carrier: Carrier, rank: int, size: int) -> None:
        """The exchanger owns the carrier from now on."""
        self.rank, self.size = rank, size
        self.takes_gpu = carrier.takes_gpu
        self._carrier = carrier
        self._carried = 0  # bytes that a link would have carried for this rank

    @abstractmethod
    def _agree(self, operation: Operation, counts: Sequence[int]) -> None:
        """Return when all ranks are in this operation. `counts`: elements by rank, the same on all ranks.

        In all-to-all: elements that go to each rank, then elements that come from each.
        """

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        self._agree(operation, [operation.elements])
        whole = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
        if operation.scale != 1.0:
            whole.mul_(operation.scale)
        self._carried += 2 * (self.size - 1) * whole.nbytes // self.size
        self._reduce(operation, whole)
        if len(tensors) > 1:
            for tensor, part in zip(tensors, torch.split(whole, [len(tensor) for tensor in tensors]), strict=True):
                tensor.copy_(part)

    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        counts = [len(part) for part in parts]
        self._agree(operation, counts)
        whole = torch.cat(list(parts))
        if operation.scale != 1.0:
            whole.mul_(operation.scale)
        self._carried += whole.nbytes - parts[self.rank].nbytes
        dtype, reduction = _as_real(operation)
        if not operation.elements:
            return
        if not self._can_reduce(dtype, reduction):
            self._reduce(operation, whole)
            output.copy_(torch.split(whole, counts)[self.rank])
            return
        factor = operation.dtype.itemsize // dtype.itemsize
        counts = [factor * count for count in counts]
        self._await(self._carrier.reduce_scatter(output.view(dtype), whole.view(dtype), counts, reduction))

    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        self._agree(operation, [len(output) for output in outputs])
        self._carried += (self.size - 1) * tensor.nbytes
        if not operation.elements:
            return
        counts = [output.nbytes for output in outputs]
        whole = torch.empty(sum(counts), dtype=torch.uint8, device=tensor.device)
        self._await(self._carrier.all_gather(whole, counts, tensor.view(torch.uint8)))
        for output, part in zip(outputs, torch.split(whole, counts), strict=True):
            output.view(torch.uint8).copy_(part)

    def all_to_all(self, operation: Operation, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._agree(operation, [len(tensor) for tensor in (*inputs, *outputs)])
        sent = torch.cat([tensor.view(torch.uint8) for tensor in inputs])
        self._carried += sent.nbytes - inputs[self.rank].nbytes
        counts, sent_counts = [output.nbytes for output in outputs], [tensor.nbytes for tensor in inputs]
        received = torch.empty(sum(counts), dtype=torch.uint8, device=sent.device)
        self._await(self._carrier.all_to_all(received, counts, sent, sent_counts))
        for output, part in zip(outputs, torch.split(received, counts), strict=True):
            output.view(torch.uint8).copy_(part)

    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        self._agree(operation, [operation.elements] * self.size)
        self._carried += tensor.nbytes if self.rank == source else 0
        if operation.elements:
            self._await(self._carrier.broadcast(tensor.view(torch.uint8), source))

    def _reduce(self, operation: Operation, whole: torch.Tensor) -> None:
        """All-reduce in place, by the library if it can, else by gathering all values and adding in order of ranks."""
        dtype, reduction = _as_real(operation)
        if not operation.elements:
            return
        if self._can_reduce(dtype, reduction):
            self._await(self._carrier.all_reduce(whole.view(dtype), reduction))
            if dtype.is_floating_point and not self._carrier.adds_once:
                unify_nans(dtype, memory_of(whole))  # which of several NaNs remains differs from rank to rank
            return
        everybody = torch.empty(self.size * len(whole), dtype=whole.dtype, device=whole.device)
        counts = [whole.nbytes] * self.size
        self._await(self._carrier.all_gather(everybody.view(torch.uint8), counts, whole.view(torch.uint8)))
        first, *others = torch.split(everybody.cpu(), len(whole))
        reduce, total = combine(operation.dtype, reduction), memory_of(first)
        for other in others:
            reduce(total, total, memory_of(other))
        whole.copy_(first)

    def _can_reduce(self, dtype: torch.dtype, reduction: Reduction) -> bool:
        # Libraries find a maximum by comparing, so that NaN may vanish; torch keeps NaN.
        is_order = reduction in (Reduction.MAX, Reduction.MIN)
        return self._carrier.reduces(dtype, reduction) and not (dtype.is_floating_point and is_order)

    def _await(self, work: Work) -> None:
        """Wait until the work is complete. If this raises, the library does not touch the memory any more."""
        try:
            while not work.wait(LOOK_SECONDS):
                self.check()
        except ExchangeFailed:
            self._stop(work)
            raise
        except CarrierFailed as failure:
            self._carrier.abort()
            blame(self.check, self._carrier.name, failure)

    def _stop(self, work: Work) -> None:
        self._carrier.abort()
        try:
            work.wait(END_SECONDS)
        except CarrierFailed:
            return  # expected


class CarriedExchanger(Carried, PointToPoint):
    """Uses a mesh to compare operations, to watch the ranks, and for sends and receives."""

    def __init__(self, carrier: Carrier, mesh: Mesh, generation: int) -> None:
        """The exchanger owns carrier and mesh from now on."""
        super().__init__(carrier, mesh.rank, mesh.size)
        self._mesh = mesh
        self._chooser = Chooser("tree", mesh.size, mesh.rank)
        self._executor = Executor(mesh, generation)

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # partly counted by the mesh
        return self._carried + self._mesh.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted by the mesh
        return self._mesh.idle_seconds

    def send(self, operation: Operation, tensor: torch.Tensor, target: int) -> None:
        self._executor.run(operation, self._chooser.send(target), [Segment([tensor])])

    def receive(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        self._executor.run(operation, self._chooser.receive(source), [Segment([tensor])])

    def missing(self) -> list[int]:
        return self._executor.missing()

    def check(self) -> None:
        self._mesh.check()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        self._mesh.abort(reason, blamed=blamed)
        self._carrier.abort()

    def close(self) -> None:
        self._carrier.close()
        self._mesh.close()

    def _agree(self, operation: Operation, counts: Sequence[int]) -> None:
        self._executor.run(operation, self._program(operation.kind), [Announced(count) for count in counts])

    def _program(self, kind: FrameKind) -> Program:
        if kind is FrameKind.ALL_REDUCE:
            return self._chooser.all_reduce(0)
        if kind is FrameKind.REDUCE_SCATTER:
            return self._chooser.reduce_scatter()
        if kind is FrameKind.ALL_TO_ALL:
            return self._chooser.all_to_all()
        return self._chooser.all_gather()  # for broadcasts too: otherwise the source would not wait for the others


def find_lost(check: Callable[[], None]) -> None:
    """A library has failed: wait a moment for `check` to raise which rank died, if one did."""
    limit = time.monotonic() + BLAME_SECONDS
    while time.monotonic() < limit:
        check()
        time.sleep(LOOK_SECONDS)


def blame(check: Callable[[], None], name: str, failure: CarrierFailed) -> NoReturn:
    """A library has failed: raise who is lost, as soon as that is known."""
    find_lost(check)
    raise PeerLost(f"{name} failed and nobody is known to be gone: {failure}") from None


def _as_real(operation: Operation) -> tuple[torch.dtype, Reduction]:
    """A sum of complex numbers is a sum of twice as many real ones."""
    assert operation.reduction is not None
    if operation.reduction is Reduction.SUM and operation.dtype in REAL:
        return REAL[operation.dtype], Reduction.SUM
    return operation.dtype, operation.reduction
