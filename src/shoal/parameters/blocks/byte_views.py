"""Views of memory as a tensor, and of tensors as bytes, without copying."""

from __future__ import annotations

import warnings

import torch


def torch_type(name: str) -> torch.dtype:
    """`name` as in tables, such as "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def tensor_over(memory: memoryview | bytearray | bytes) -> torch.Tensor:
    """A tensor over these bytes, which keeps them alive. Writing to it crashes if the bytes are read-only."""
    if len(memory) == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # Make another view, so that the caller may release the one that it gave.
        return torch.frombuffer(memoryview(memory), dtype=torch.uint8)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor; the view keeps them alive."""
    found: memoryview = tensor.view(torch.uint8).numpy().data
    return found
