"""The script that `shoal bench training` runs on every worker: one model, trained by Shoal and by DDP in turns.

Both train in the same processes, alternately, so that what else the machine does hits both alike. Prints one JSON line
on rank 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import shoal

WARM_UP = 5  # steps of each before the first measured one

Step = Callable[[], None]


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    data: TensorDataset
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def mlp() -> Problem:
    """25.2 million parameters: wide layers, so that the exchange weighs as much as the computation."""
    width = 2048
    model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), *_wide(width, 5), nn.Linear(width, 1024))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1024, generator=generator)
    return Problem(model, TensorDataset(x, x.roll(1, dims=1)), lambda net, a, b: F.mse_loss(net(a), b))


def _wide(width: int, layers: int) -> list[nn.Module]:
    return [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]


def transformer() -> Problem:
    """A small language model: many small tensors, more computation per byte exchanged."""
    layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(256, 192), body, nn.Linear(192, 256))
    tokens = torch.randint(0, 256, (4096, 65), generator=torch.Generator().manual_seed(0))

    def loss(net: nn.Module, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(a).flatten(0, 1), b.flatten())

    return Problem(model, TensorDataset(tokens[:, :-1], tokens[:, 1:]), loss)


PROBLEMS = {"mlp": mlp, "transformer": transformer}


def shoal_step(run: shoal.Run, problem: Problem, batch: int) -> Step:
    model = run.model(copy.deepcopy(problem.model))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1e-3))
    batches = iter(run.batches(problem.data, batch_size=batch, epochs=10_000))

    def step() -> None:
        x, y = next(batches)
        problem.loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp_step(problem: Problem, batch: int, *, static: bool) -> Step:
    """`static` is DDP's fastest setting for a model that never changes; the other is its default."""
    model = DistributedDataParallel(copy.deepcopy(problem.model), static_graph=static, gradient_as_bucket_view=static)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sampler: torch.utils.data.DistributedSampler[torch.Tensor] = torch.utils.data.DistributedSampler(problem.data)
    loader = torch.utils.data.DataLoader(problem.data, batch_size=batch, sampler=sampler)
    batches = iter(loader)

    def step() -> None:
        nonlocal batches
        pair = next(batches, None)
        if pair is None:
            batches = iter(loader)
            pair = next(batches)
        problem.loss(model, *pair).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def alone_step(problem: Problem, batch: int) -> Step:
    """No exchange at all: the floor."""
    model = copy.deepcopy(problem.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = problem.data[:batch]

    def step() -> None:
        problem.loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of(step: Step, count: int) -> float:
    """Mean seconds of `count` steps that all ranks start together."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - started) / count


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    problem = PROBLEMS[arguments.problem]()
    steps = {
        "shoal": shoal_step(run, problem, arguments.batch),
        "ddp": ddp_step(problem, arguments.batch, static=False),
        "ddp-static": ddp_step(problem, arguments.batch, static=True),
        "no exchange": alone_step(problem, arguments.batch),
    }
    for step in steps.values():
        seconds_of(step, WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(arguments.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(seconds_of(steps[name], arguments.steps))
    dist.destroy_process_group()
    if run.is_first:
        size = sum(parameter.numel() for parameter in problem.model.parameters())
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        print(json.dumps({"parameters": size, "seconds": seconds, "median": medians}))


if __name__ == "__main__":
    shoal.main(train)
