"""An example for whoever adds a codec: it sends the largest values only, and what it leaves out comes with later steps.

It is lossy, keyed and of varying length. Shoal knows nothing of it: a package offers it by an entry point, see
`support.offers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import torch

from shoal.codecs.codec import Codec, Leg, TensorKey
from shoal.codecs.identity import memory_of
from shoal.codecs.residuals import Residuals
from shoal.errors import WireError

WHOLE, SPARSE = 0, 1  # the first byte: how the rest is to be read
INDEX_BYTES = 4


class Sparse(Codec):
    name = "sparse"
    wire_id = 201

    class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        above: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0  # values larger than this many root mean squares

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self._residuals = Residuals()

    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        return 1 + elements * dtype.itemsize

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        if key.leg is Leg.VALUES:  # a server must not remember what it left out for whom
            return _whole(tensor)
        wanted = self._residuals.add_to(key, tensor)
        chosen = (wanted.abs() > self.settings.above * wanted.square().mean().sqrt()).nonzero().flatten()
        is_shorter = len(chosen) * (INDEX_BYTES + tensor.itemsize) < len(tensor) * tensor.itemsize
        if not is_shorter or not wanted.isfinite().all():
            self._residuals.put(key, torch.zeros_like(wanted))
            return _whole(wanted)
        values = wanted[chosen]
        wanted[chosen] = 0
        self._residuals.put(key, wanted)
        indices = chosen.to(torch.int32)
        return memoryview(bytes([SPARSE]) + bytes(memory_of(indices)) + bytes(memory_of(values)))

    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:
        if len(data) == 1 + tensor.nbytes and data[0] == WHOLE:
            memory_of(tensor)[:] = data[1:]
            return
        count, rest = divmod(len(data) - 1, INDEX_BYTES + tensor.itemsize)
        if len(data) < 1 or data[0] != SPARSE or rest or count > len(tensor):
            raise WireError(f"{len(data)} bytes are not a sparse tensor of {len(tensor)} elements")
        tensor.zero_()
        if not count:
            return
        split = 1 + count * INDEX_BYTES
        indices = torch.frombuffer(bytearray(data[1:split]), dtype=torch.int32).long()
        if indices[0] < 0 or indices[-1] >= len(tensor) or not (indices.diff() > 0).all():
            raise WireError(f"a sparse tensor of {len(tensor)} elements has others than those, or has them twice")
        tensor[indices] = torch.frombuffer(bytearray(data[split:]), dtype=tensor.dtype)

    def state(self) -> dict[str, torch.Tensor]:
        return self._residuals.state()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._residuals.load(state)


def _whole(tensor: torch.Tensor) -> memoryview:
    return memoryview(bytes([WHOLE]) + bytes(memory_of(tensor)))
