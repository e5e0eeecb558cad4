"""How torch lays several ranks' parts into one tensor, and how errors name a tensor. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.collectives import texts
from shoal.errors import UsageError

MOST_LABELS = 4096  # shapes whose labels are remembered; beyond that, all are forgotten

_labels: dict[torch.Size, str] = {}


def label_of(tensor: torch.Tensor) -> str:
    """A label by which ranks notice that their shapes differ. Dimensions of one element do not count."""
    shape = tensor.shape
    label = _labels.get(shape)
    if label is None:
        if len(_labels) >= MOST_LABELS:
            _labels.clear()
        sizes = [str(size) for size in shape if size != 1]
        label = _labels[shape] = f"torch {' x '.join(sizes) or 'one element'}"
    return label


def nothing_much() -> torch.Tensor:
    """A tensor for barriers, independent of the program's default device and type."""
    return torch.zeros(1, dtype=torch.float32, device="cpu")


def equal_parts(whole: torch.Tensor, count: int, elements: int) -> list[torch.Tensor]:
    """The parts, of `elements` each, that lie one after the other in a tensor."""
    if whole.numel() != count * elements:
        raise UsageError(texts.wrong_whole(whole.shape, count, elements))
    if elements == 0:
        return [whole.data.view(-1)] * count if whole.is_contiguous() else [whole.data.new_empty(0)] * count
    if whole.is_contiguous():
        return list(whole.data.view(-1).split(elements))
    if whole.shape[0] % count:
        raise UsageError(texts.not_contiguous(whole.shape, count))
    return list(whole.data.chunk(count))


def split_parts(whole: torch.Tensor, sizes: Sequence[int], count: int, what: str) -> list[torch.Tensor]:
    """Parts along the first dimension, of the given sizes or all equal where none are given."""
    if not sizes:
        if whole.shape[0] % count:
            raise UsageError(texts.no_multiple(what, whole.shape[0], count))
        sizes = [whole.shape[0] // count] * count
    if len(sizes) != count or sum(sizes) != whole.shape[0]:
        raise UsageError(texts.wrong_splits(what, sizes, count, whole.shape[0]))
    return list(whole.data.split(list(sizes)))
