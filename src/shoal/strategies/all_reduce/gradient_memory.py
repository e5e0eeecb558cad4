"""The memory of a gradient: autograd's own tensor where nothing else uses that memory, else a copy.

A gradient is reduced in place. That is only right if no other tensor shares its memory: the script may hold one
(`backward(gradient)`), the gradients of `torch.cat` are slices of one tensor, and with `create_graph` a graph refers to
it. Not here: what is exchanged when (`gradient_groups`).
"""

from __future__ import annotations

import torch

# References to the storage of a gradient that is ours alone: the gradient, and the object that we ask.
_OWN_HOLDERS = 2


class GradientLayout:
    """How a parameter's gradient lies in memory during an exchange: the same on every worker."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._shape = parameter.shape
        self._dtype, self._device = parameter.dtype, parameter.device
        # The parameter's own strides where it is dense, such as channels_last, so that optimizers run at full speed.
        self._strides = parameter.stride() if _is_dense(parameter) else _row_by_row(parameter.shape)
        self._is_row_by_row = self._strides == _row_by_row(parameter.shape)
        self._elements = parameter.numel()

    def own(self, gradient: torch.Tensor) -> torch.Tensor:
        """The same values in memory of our own: a dense gradient's own tensor if it can be, else a copy."""
        if gradient.dtype == self._dtype and self._fits(gradient) and _is_alone(gradient):
            return gradient
        return self._empty().copy_(gradient.detach())

    def zeros(self) -> torch.Tensor:
        return self._empty().zero_()

    def flat(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient that `own` or `zeros` made, as a flat tensor in the order of memory."""
        return gradient.as_strided((self._elements,), (1,))

    def _fits(self, gradient: torch.Tensor) -> bool:
        """Whether the strides fit; those of dimensions of size 1 mean nothing and may differ."""
        return gradient.stride() == self._strides or (self._is_row_by_row and gradient.is_contiguous())

    def _empty(self) -> torch.Tensor:
        return torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device=self._device)


def _is_alone(gradient: torch.Tensor) -> bool:
    """Whether nothing else can see a change of the gradient's memory."""
    if gradient.requires_grad:  # backward(create_graph=True): a graph was recorded with these values
        return False
    if gradient.is_conj() or gradient.is_neg():  # the values in memory are not those of the tensor
        return False
    storage = gradient.untyped_storage()
    is_whole = storage.nbytes() == gradient.numel() * gradient.element_size()
    return is_whole and torch._C._storage_Use_Count(storage._cdata) <= _OWN_HOLDERS


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _row_by_row(shape: torch.Size) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
