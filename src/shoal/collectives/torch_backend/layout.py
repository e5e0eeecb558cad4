"""How torch lays several ranks' parts into one tensor, and what a tensor is called in an error. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.errors import UsageError

MOST_LABELS = 4096  # shapes whose name is remembered; programs with more of them start over

_labels: dict[torch.Size, str] = {}


def label_of(tensor: torch.Tensor) -> str:
    """Ranks whose tensors differ in shape find out by it. Dimensions of one element do not count."""
    shape = tensor.shape
    label = _labels.get(shape)
    if label is None:
        if len(_labels) >= MOST_LABELS:
            _labels.clear()
        sizes = [str(size) for size in shape if size != 1]
        label = _labels[shape] = f"torch {' x '.join(sizes) or 'one element'}"
    return label


def nothing_much() -> torch.Tensor:
    """For meetings without a message. Not on the program's default device, nor of its default type."""
    return torch.zeros(1, dtype=torch.float32, device="cpu")


def equal_parts(whole: torch.Tensor, count: int, elements: int) -> list[torch.Tensor]:
    """The parts of `elements` each that lie one after the other in a tensor."""
    if whole.numel() != count * elements:
        raise UsageError(
            f"a tensor of {tuple(whole.shape)} does not hold {count} parts of {elements} elements; "
            f"it needs {count * elements} elements, one part per rank"
        )
    if elements == 0:
        return [whole.data.view(-1)] * count if whole.is_contiguous() else [whole.data.new_empty(0)] * count
    if whole.is_contiguous():
        return list(whole.data.view(-1).split(elements))
    if whole.shape[0] % count:
        raise UsageError(f"a tensor of {tuple(whole.shape)} that is not contiguous cannot be cut into {count} parts")
    return list(whole.data.chunk(count))


def split_parts(whole: torch.Tensor, sizes: Sequence[int], count: int, what: str) -> list[torch.Tensor]:
    """Parts along the first dimension, of the given sizes or all equal where none are given."""
    if not sizes:
        if whole.shape[0] % count:
            raise UsageError(f"the {what}'s first dimension, {whole.shape[0]}, is not a multiple of {count} ranks")
        sizes = [whole.shape[0] // count] * count
    if len(sizes) != count or sum(sizes) != whole.shape[0]:
        raise UsageError(
            f"the {what}'s split sizes {list(sizes)} do not fit: {count} of them have to add up to the first "
            f"dimension, {whole.shape[0]}"
        )
    return list(whole.data.split(list(sizes)))
