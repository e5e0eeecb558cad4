"""n workers with batch b compute what one worker with batch n*b computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from support.training import train_in_threads

STEPS = 100


def problem(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x @ torch.randn(6, 3, generator=generator, dtype=torch.float64)).sin())


# Built once and copied: threads share torch's global generator, so models built in each would differ.
PLAIN = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
NORMED = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def trainer(start: nn.Module, data: TensorDataset, batch: int, accumulate: int = 1) -> Callable[[shoal.Run], Any]:
    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(start))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        for x, y in run.batches(data, batch_size=batch, epochs=1000, accumulate=accumulate):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step + 1 == STEPS and run.applied:
                break
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    return train


def assert_close(one: dict[str, torch.Tensor], many: dict[str, torch.Tensor]) -> None:
    for name, tensor in one.items():
        assert (tensor.double() - many[name].double()).abs().max().item() <= 1e-9, name


@pytest.mark.parametrize(
    "size", [2, 5, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4, 6, 7, 8, 9, 10))]
)
def test_many_workers_equal_one_with_the_whole_batch(size: int) -> None:
    data = problem(size * 4 * 3 + 5)  # the last step of an epoch is short and does not divide
    (one,) = train_in_threads(1, trainer(PLAIN, data, batch=4 * size))
    many = train_in_threads(size, trainer(PLAIN, data, batch=4))
    assert_close(one, many[0])
    for other in many[1:]:
        assert all(torch.equal(many[0][name], other[name]) for name in other)


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 5, 10))])
def test_batch_statistics_over_all_workers_equal_one_worker(size: int) -> None:
    data = problem(size * 4 * 2 + 3)
    (one,) = train_in_threads(1, trainer(NORMED, data, batch=4 * size))
    many = train_in_threads(size, trainer(NORMED, data, batch=4), sync_batchnorm=True)
    assert_close(one, many[0])


def test_accumulated_batches_equal_one_large_batch() -> None:
    data = problem(61)
    (one,) = train_in_threads(1, trainer(PLAIN, data, batch=24))
    (alone,) = train_in_threads(1, trainer(PLAIN, data, batch=6, accumulate=4))
    together = train_in_threads(2, trainer(PLAIN, data, batch=3, accumulate=4))
    assert_close(one, alone)
    assert_close(one, together[0])


@pytest.mark.long
def test_the_same_seed_gives_bit_identical_runs() -> None:
    data = problem(53)

    def result(seed: int) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = train_in_threads(3, trainer(PLAIN, data, batch=4), seed=seed)[0]
        return found

    first, again, other = result(1), result(1), result(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
