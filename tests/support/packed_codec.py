"""An example of a lossless codec: it squeezes bytes, so that servers may encode the values of parameters too."""

from __future__ import annotations

import zlib

import torch

from shoal.codecs.codec import Codec, TensorKey
from shoal.codecs.identity import memory_of
from shoal.errors import WireError


class Packed(Codec):
    name = "packed"
    wire_id = 202
    is_lossless = True

    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        size = elements * dtype.itemsize
        return size + size // 1000 + 64  # zlib's own bound is lower

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        return memoryview(zlib.compress(memory_of(tensor), 1))

    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:
        unpacking, memory = zlib.decompressobj(), memory_of(tensor)
        try:
            found = unpacking.decompress(data, len(memory) + 1)  # no more than that, whatever the bytes say
        except zlib.error as error:
            raise WireError(f"{len(data)} bytes are not packed: {error}") from None
        if len(found) != len(memory) or not unpacking.eof or unpacking.unused_data:
            raise WireError(f"{len(data)} bytes are not those of a tensor of {len(memory)}")
        memory[:] = found
