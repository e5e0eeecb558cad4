"""What the tests of `shoal.data` share: dealings, epochs gathered over all ranks, and data sets that augment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from shoal.data.dealing import Dealing
from shoal.data.feed import Batch, Feed
from shoal.values import Cursor


def equal_dealings(world_size: int, batch_size: int, accumulate: int = 1) -> list[Dealing]:
    shares = (1,) * world_size
    return [Dealing(rank, shares, batch_size, accumulate) for rank in range(world_size)]


@dataclass(frozen=True)
class Step:
    """One step as seen from outside: what all workers together were given."""

    samples: list[Any]  # in order of position
    step_samples: int
    cursor_after: Cursor


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that leaves samples as they are."""
    return list(samples)


def steps_of(feed: Feed, cursor: Cursor, dealings: list[Dealing]) -> Iterator[Step]:
    """Run all ranks side by side; their batches must agree on everything but the data. Data are lists of samples."""
    accumulate = dealings[0].accumulate
    iterators = [feed.batches(cursor, dealing) for dealing in dealings]
    samples: list[Any] = []
    for number, batches in enumerate(zip(*iterators, strict=True)):
        assert len({(b.step_samples, b.is_last, b.cursor_after) for b in batches}) == 1
        assert batches[0].is_last == (number % accumulate == accumulate - 1)
        for batch in batches:
            assert len(batch.data) == (batch.samples or 2)
            samples += batch.data[: batch.samples]
        if batches[0].is_last:
            yield Step(samples, batches[0].step_samples, batches[0].cursor_after)
            samples = []


def epoch_of(feed: Feed, dealings: list[Dealing], epoch: int = 0) -> list[Any]:
    """Every sample that some worker was given, in order of position."""
    return [sample for step in steps_of(feed, Cursor(epoch=epoch), dealings) for sample in step.samples]


def batches_of(feed: Feed, dealing: Dealing, cursor: Cursor | None = None) -> list[Batch]:
    return list(feed.batches(cursor or Cursor(), dealing))


class Augmented(Dataset[tuple[int, float, float, float]]):
    """Each sample is its index and one draw from each of the global generators."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


class AugmentedStream(IterableDataset[tuple[int, float, float, float]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[tuple[int, float, float, float]]:
        for index in range(self.size):
            yield index, torch.rand(()).item(), random.random(), float(np.random.rand())


class Counting(IterableDataset[int]):
    """The numbers below `size`; counts how many were read in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.size):
            self.read += 1
            yield number
