"""Memory seen as a tensor of bytes and the other way round, without copying."""

from __future__ import annotations

import warnings

import torch


def torch_type(name: str) -> torch.dtype:
    """`name` as in tables, such as "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def tensor_over(memory: memoryview | bytearray | bytes) -> torch.Tensor:
    """A tensor of these bytes, which stay as long as it does. What is read-only must only be read: writing crashes."""
    if len(memory) == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # A view of its own, so that an owner may release the one it gave.
        return torch.frombuffer(memoryview(memory), dtype=torch.uint8)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, which stay as long as they are viewed."""
    found: memoryview = tensor.view(torch.uint8).numpy().data
    return found
