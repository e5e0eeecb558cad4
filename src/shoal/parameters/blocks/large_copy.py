"""Copies of tensors of which the cache holds only a part: past it, where the C extension is there."""

from __future__ import annotations

import torch

from shoal.transport.native import native

LARGE = 1 << 20  # bytes; less may be read again while the cache has it


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Both flat, of one length and dtype."""
    size = to.numel() * to.element_size()
    is_plain = to.dtype == source.dtype and to.is_contiguous() and source.is_contiguous()
    if native is None or size < LARGE or not is_plain or to.device.type != "cpu" or source.device.type != "cpu":
        to.copy_(source)
    else:
        assert source.numel() == to.numel()
        native.copy(to.data_ptr(), source.data_ptr(), size)
