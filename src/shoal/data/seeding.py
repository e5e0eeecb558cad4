"""Random generators while samples are loaded: seeded from what is loaded, and given back as they were.

Covers the three global generators that augmentation draws from: torch's on the CPU, `random` and numpy's. Generators
that a data set makes for itself are left alone. The training loop's state is never disturbed: code that seeds does it
inside `generators_kept` or `PrivateGenerators.in_use`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

Captured = tuple[torch.Tensor, Any, Any]


def seed_generators(seed: int) -> None:
    """Seed from 64 bits. `torch.manual_seed` would also seed every accelerator, which takes a hundred times longer."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def _capture() -> Captured:
    return torch.default_generator.get_state(), random.getstate(), np.random.get_state()


def _restore(captured: Captured) -> None:
    state, python_state, numpy_state = captured
    torch.default_generator.set_state(state)
    random.setstate(python_state)
    np.random.set_state(numpy_state)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators' states at the end of the block."""
    before = _capture()
    try:
        yield
    finally:
        _restore(before)


class PrivateGenerators:
    """States of the global generators that belong to one stream, so that every worker reads the same stream."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state: Captured | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with generators_kept():
            if self._state is None:
                seed_generators(self._seed)
            else:
                _restore(self._state)
            try:
                yield
            finally:
                self._state = _capture()


def may_be_random(dataset: object) -> bool:
    """False only for types known to draw no random numbers when a sample is read; subclasses may do anything."""
    if type(dataset) is Subset:
        return may_be_random(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(may_be_random(part) for part in dataset.datasets)
    return type(dataset) not in (list, tuple, range, TensorDataset)
