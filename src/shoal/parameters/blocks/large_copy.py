"""Copies of tensors larger than the cache; with the C extension, they bypass the cache."""

from __future__ import annotations

import torch

from shoal.transport.native import native

LARGE = 1 << 20  # bytes; smaller copies go through the cache, where they may be read again


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Both tensors are flat and have the same length and dtype."""
    size = to.numel() * to.element_size()
    is_plain = to.dtype == source.dtype and to.is_contiguous() and source.is_contiguous()
    if native is None or size < LARGE or not is_plain or to.device.type != "cpu" or source.device.type != "cpu":
        to.copy_(source)
    else:
        assert source.numel() == to.numel()
        native.copy(to.data_ptr(), source.data_ptr(), size)
