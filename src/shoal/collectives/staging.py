"""Any tensor as a flat run of elements in CPU memory: the tensor's own memory where that is possible, else a copy.

A copy is written back only when the operation is whole. Not here: the moving of the bytes.
"""

from __future__ import annotations

import torch

from shoal.errors import UsageError


class Staged:
    """`flat` is one-dimensional, contiguous and on the CPU. After an operation that fills it, call `write_back`."""

    def __init__(self, tensor: torch.Tensor, *, is_read: bool = True) -> None:
        """`is_read`: the operation uses the values that are there; otherwise a copy starts with any."""
        self._tensor = tensor.data  # not detach(): writing must not count as a change that autograd objects to
        if is_plain(tensor):
            self.flat = self._tensor.view(-1)
            self._copied = False
        else:
            self.flat = copy_of(tensor) if is_read else torch.empty(tensor.numel(), dtype=tensor.dtype)
            self._copied = True

    def write_back(self) -> None:
        if not self._copied:
            return
        target, source = self._tensor, self.flat.view(self._tensor.shape)
        for dimension, stride in enumerate(target.stride()):
            # Elements of an expanded dimension are one element in memory, and all ranks gave them one value.
            if stride == 0 and target.shape[dimension] > 1:
                target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        target.copy_(source)


def is_plain(tensor: torch.Tensor) -> bool:
    """Its memory can be used as it is."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    flat.copy_(tensor.data)
    return flat.view(-1)


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values; shapes may differ as long as the elements do not."""
    staged = Staged(target, is_read=False)
    staged.flat.copy_(source.data.reshape(-1))
    staged.write_back()


def check(tensor: torch.Tensor, *, label: str) -> None:
    """Only tensors that have a value per element in memory can take part."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise UsageError(f"{label!r}: only dense tensors can be exchanged, not one of layout {tensor.layout}")
