"""Any tensor as a flat run of elements: the tensor's own memory where that is possible, else a copy.

`Flat` leaves GPU tensors on their GPU, for exchangers that take them (`gpu_way`); `HostFlat` is always in CPU memory. A
copy is written back only when the operation is complete. Not here: moving the bytes.
"""

from __future__ import annotations

import torch

from shoal.collectives import texts
from shoal.collectives.gpu.pinned_memory import pool
from shoal.errors import UsageError


class Flat:
    """`flat` is one-dimensional and contiguous. After an operation that fills it, call `write_back`."""

    def __init__(self, tensor: torch.Tensor, *, is_read: bool = True) -> None:
        """`is_read`: the operation uses the tensor's values; if not, a copy starts with undefined values."""
        self._tensor = tensor.data  # not detach(): writing must not count as a change that autograd objects to
        self._copied = not self._is_usable()
        if not self._copied:
            self.flat = self._tensor if self._tensor.dim() == 1 else self._tensor.view(-1)
        else:
            self.flat = self._memory()
            if is_read:
                self.flat.view(tensor.shape).copy_(self._tensor)

    def _is_usable(self) -> bool:
        return _has_plain_layout(self._tensor) and (self._tensor.is_cpu or self._tensor.is_cuda)

    def _memory(self) -> torch.Tensor:
        device = self._tensor.device if self._tensor.is_cuda else "cpu"
        return torch.empty(self._tensor.numel(), dtype=self._tensor.dtype, device=device)

    def write_back(self) -> None:
        if not self._copied:
            return
        target, source = self._tensor, self.flat.view(self._tensor.shape)
        for dimension, stride in enumerate(target.stride()):
            # Elements of an expanded dimension are one element in memory, and all ranks gave them one value.
            if stride == 0 and target.shape[dimension] > 1:
                target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        target.copy_(source)


class HostFlat(Flat):
    """Like `Flat`, in CPU memory. A thread other than the one that made it may write it back."""

    def __init__(self, tensor: torch.Tensor, *, is_read: bool = True) -> None:
        self._made: torch.cuda.Event | None = None  # on the stream of the thread that makes this
        if tensor.is_cuda:
            self._made = torch.cuda.current_stream(tensor.device).record_event()
        super().__init__(tensor, is_read=is_read)

    def _is_usable(self) -> bool:
        return is_plain(self._tensor)

    def _memory(self) -> torch.Tensor:
        if self._made is None:
            return torch.empty(self._tensor.numel(), dtype=self._tensor.dtype)
        return pool.take(self._tensor.nbytes).view(self._tensor.dtype)

    def write_back(self) -> None:
        if self._made is not None:
            torch.cuda.current_stream(self._tensor.device).wait_event(self._made)
        super().write_back()


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether exchangers can take the tensor as it is: one dense run of CPU memory, not watched by autograd."""
    return (
        tensor.dim() == 1
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and _has_plain_layout(tensor)
        and not tensor.is_quantized
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """The tensor's memory can be used as it is."""
    return tensor.is_cpu and _has_plain_layout(tensor)


def _has_plain_layout(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    flat.copy_(tensor.data)
    return flat.view(-1)


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values; shapes may differ if the numbers of elements are equal."""
    made = Flat(target, is_read=False)
    made.flat.copy_(source.data.reshape(-1))
    made.write_back()


def check(tensor: torch.Tensor, *, label: str) -> None:
    """Refuse tensors that do not have a value per element in memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise UsageError(texts.not_dense(label, tensor.layout))
