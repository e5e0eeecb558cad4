"""The codec that changes nothing: the tensor's own bytes. The default, and the reference for every other codec."""

from __future__ import annotations

import torch

from shoal.codecs.codec import Codec, TensorKey
from shoal.errors import WireError


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a one-dimensional contiguous CPU tensor of any dtype, shared with it."""
    # numpy knows no bfloat16, but every dtype can be seen as bytes.
    memory: memoryview = tensor.view(torch.uint8).numpy().data
    return memory


class Identity(Codec):
    name = "identity"
    wire_id = 0
    raw = True
    is_lossless = True

    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        return elements * dtype.itemsize

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:  # noqa: ARG002  all tensors are alike
        return memory_of(tensor)

    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:  # noqa: ARG002
        memory = memory_of(tensor)
        if len(data) != len(memory):
            raise WireError(f"{len(data)} bytes arrived for a tensor of {len(memory)}")
        memory[:] = data
