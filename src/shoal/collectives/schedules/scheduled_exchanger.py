"""An exchanger that runs schedules over a mesh: the general exchanger, for any transport and any number of machines."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.codecs.codec import Codec
from shoal.collectives import flat_tensors
from shoal.collectives.exchanger import Exchanger, Operation, PointToPoint
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.encoded_reduce import EncodedReduce
from shoal.collectives.schedules.executor import Executor, Segment, segments_of
from shoal.transport.mesh.mesh import Mesh


class ScheduledExchanger(Exchanger, PointToPoint):
    def __init__(self, mesh: Mesh, chooser: Chooser, codec: Codec, generation: int) -> None:
        """The exchanger owns `mesh` from now on. `codec` encodes operations with a key; others travel as they are."""
        self.rank, self.size = mesh.rank, mesh.size
        self._mesh = mesh
        self._chooser = chooser
        self._executor = Executor(mesh, generation)
        self._encoded = None if codec.raw else EncodedReduce(mesh, self._executor, codec)

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted by the mesh
        return self._mesh.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted by the mesh
        return self._mesh.idle_seconds

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        if operation.scale != 1.0:
            for tensor in tensors:
                tensor.mul_(operation.scale)
        if operation.key and self._encoded is not None:
            self._encoded.run(operation, tensors)
            return
        program = self._chooser.all_reduce(operation.elements * operation.dtype.itemsize)
        bounds = program.bounds(operation.elements)
        self._executor.run(operation, program, segments_of(tensors, bounds))

    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        # Partial sums pass through every rank's memory: work on copies, so that the parts stay unchanged.
        copies = [flat_tensors.copy_of(part) for part in parts]
        if operation.scale != 1.0:
            for copy in copies:
                copy.mul_(operation.scale)
        self.reduce_scatter_in_place(operation, [[copy] for copy in copies])
        output.copy_(copies[self.rank])

    def reduce_scatter_in_place(self, operation: Operation, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """`parts[rank]` becomes the reduction over all ranks; the other parts are undefined afterwards."""
        self._executor.run(operation, self._chooser.reduce_scatter(), [Segment(part) for part in parts])

    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        outputs[self.rank].copy_(tensor)
        self.all_gather_in_place(operation, [[output] for output in outputs])

    def all_gather_in_place(self, operation: Operation, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """`parts[r]` becomes rank r's part."""
        self._executor.run(operation, self._chooser.all_gather(), [Segment(part) for part in parts])

    def all_to_all(self, operation: Operation, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        outputs[self.rank].copy_(inputs[self.rank])
        segments = [Segment([tensor]) for tensor in (*inputs, *outputs)]
        self._executor.run(operation, self._chooser.all_to_all(), segments)

    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        program = self._chooser.broadcast(operation.elements * operation.dtype.itemsize, source)
        bounds = program.bounds(operation.elements)
        self._executor.run(operation, program, segments_of([tensor], bounds))

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

    def close(self) -> None:
        self._mesh.close()
