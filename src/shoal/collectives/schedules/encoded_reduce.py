"""All-reduce of tensors that a codec encodes: each rank adds up one part of them, and all decode the same bytes.

    every rank      encodes its piece of each part for the rank that owns the part
    the owner       adds up the decoded pieces and its own, in the order of the ranks, and encodes the sum
    every rank      decodes each sum, even the one that it owns

So an element is encoded twice, however many ranks there are, and replicas stay equal bit for bit. A piece's residual
belongs to the same elements of this rank's tensors under every schedule. The bytes of a piece may have any length up to
the codec's bound. Not here: which operations are encoded (`scheduled_exchanger`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from shoal.codecs.codec import Codec, Leg, TensorKey
from shoal.codecs.identity import memory_of
from shoal.collectives.agreement import disagreement
from shoal.collectives.combining import combine
from shoal.collectives.exchanger import Operation
from shoal.collectives.schedules.executor import Executor, Segment, segments_of
from shoal.collectives.schedules.schedule import boundaries
from shoal.errors import WireError
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import pack

_LEGS = {Leg.CONTRIBUTION: 0, Leg.SUM: 1}  # numbers of transfers


class EncodedReduce:
    """One per exchanger; used by one thread. Mesh and executor are the exchanger's."""

    def __init__(self, mesh: Mesh, executor: Executor, codec: Codec) -> None:
        self._mesh = mesh
        self._executor = executor
        self._codec = codec

    def run(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors, taken as one run of elements, become the decoded sum over all ranks."""
        self._executor.take_turn()
        rank, size = self._mesh.rank, self._mesh.size
        bounds = boundaries(operation.elements, size)
        segments = segments_of(tensors, bounds)
        others = [(rank + step) % size for step in range(1, size)]
        keys = {leg: [TensorKey(operation.key, leg, start) for start, _ in bounds] for leg in Leg}
        for owner in others:
            self._post(
                operation,
                Leg.CONTRIBUTION,
                owner,
                self._encoded(keys[Leg.CONTRIBUTION][owner], segments[owner].joined()),
            )
        total = self._summed(operation, segments[rank], keys[Leg.CONTRIBUTION][rank])
        data = self._encoded(keys[Leg.SUM][rank], total)
        for peer in others:
            self._post(operation, Leg.SUM, peer, data)
        segments[rank].fill(self._decoded(keys[Leg.SUM][rank], data, len(total), operation.dtype))
        for owner in reversed(others):
            segments[owner].fill(self._received(operation, owner, keys[Leg.SUM][owner], segments[owner].elements))
        self._mesh.drain()

    def _summed(self, operation: Operation, own: Segment, key: TensorKey) -> torch.Tensor:
        """The sum of all ranks' pieces of the part that this rank owns. Its own piece is not encoded."""
        assert operation.reduction is not None
        combined = combine(operation.dtype, operation.reduction)
        pieces = (
            own.joined() if rank == self._mesh.rank else self._received(operation, rank, key, own.elements)
            for rank in range(self._mesh.size)
        )
        total = next(pieces).clone()
        memory = memory_of(total)
        for piece in pieces:
            combined(memory, memory, memory_of(piece))
        return total

    def _post(self, operation: Operation, leg: Leg, peer: int, data: memoryview) -> None:
        header = self._executor.header(operation, _LEGS[leg], data.nbytes, codec=self._codec.wire_id)
        self._mesh.post(peer, pack(header), data)

    def _received(self, operation: Operation, peer: int, key: TensorKey, elements: int) -> torch.Tensor:
        most = self._codec.most_bytes(elements, operation.dtype)
        expected = self._executor.header(operation, _LEGS[key.leg], most, codec=self._codec.wire_id)
        found = self._executor.receive_header(peer, expected)
        if msgspec.structs.replace(found, payload=most) != expected:
            raise disagreement((self._mesh.rank, expected), (peer, found))
        if found.payload > most:
            raise WireError(
                f"from rank {peer}: {found.payload} bytes for {elements} elements, and the codec {self._codec.name} "
                f"makes {most} at most"
            )
        data = memoryview(bytearray(found.payload))
        self._mesh.receive_into(peer, data)
        try:
            return self._decoded(key, data, elements, operation.dtype)
        except WireError as error:
            raise WireError(f"from rank {peer}: {error}") from None

    # Not in inference mode, unlike the rest of the communication thread: other threads use the codec's tensors too.

    def _encoded(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._codec.encode(key, tensor)

    def _decoded(self, key: TensorKey, data: memoryview, elements: int, dtype: torch.dtype) -> torch.Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            tensor = torch.empty(elements, dtype=dtype)
            self._codec.decode(key, data, tensor)
            return tensor
