"""The script that `shoal bench training` runs on every worker: one model, trained in several ways that take turns.

Shoal, DDP and a loop without any exchange run in Shoal's workers. DDP and the loop also run in plain processes, started
as torchrun would start them, one beside each worker: what a script without Shoal gets. Only one of all of them works at
a time, so that what else the machine does hits all alike. Prints one JSON line on rank 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import shoal
from shoal.bench.training.figures import DDP, FAST_DDP, IN_WORKER, NO_EXCHANGE, SHOAL
from shoal.bench.training.problems import PROBLEMS, Problem
from shoal.data.loading import die_with_parent
from shoal.environment import KEEPING_MALLOC, MALLOC, PREFIX, inherited

WARM_UP = 5  # steps of each before the first measured one
ANSWER = "seconds: "  # before what a plain process says

Step = Callable[[], None]
Turn = Callable[[int], float]  # mean seconds of so many steps


def shoal_step(run: shoal.Run, problem: Problem) -> Step:
    model = run.model(copy.deepcopy(problem.model))
    optimizer = run.optimizer(problem.optimizer(model.parameters()), clip_norm=problem.clip_norm)
    batches = iter(run.batches(problem.data, batch_size=problem.batch, epochs=10_000))

    def step() -> None:
        problem.loss(model, next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_step(problem: Problem, model: torch.nn.Module, sampler: Any) -> Step:
    """What a script without Shoal does, with DDP around its model or without."""
    optimizer = problem.optimizer(model.parameters())
    loader = DataLoader(problem.data, batch_size=problem.batch, sampler=sampler)
    batches = _forever(loader)

    def step() -> None:
        problem.loss(model, next(batches)).backward()
        if problem.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), problem.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _forever(loader: DataLoader[Any]) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def plain_steps(problem: Problem) -> dict[str, Step]:
    """DDP with its default settings, DDP with its fastest for a model that never changes, and no exchange at all."""

    def ddp(*, fast: bool) -> Step:
        model = copy.deepcopy(problem.model)
        wrapped = DistributedDataParallel(model, static_graph=fast, gradient_as_bucket_view=fast)
        return plain_step(problem, wrapped, DistributedSampler(problem.data))

    alone = plain_step(problem, copy.deepcopy(problem.model), RandomSampler(problem.data))
    return {DDP: ddp(fast=False), FAST_DDP: ddp(fast=True), NO_EXCHANGE: alone}


def turn_of(step: Step) -> Turn:
    def turn(count: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - started) / count

    return turn


def plain_environment() -> dict[str, str]:
    """This worker's without what the job has put there; the number of threads stays."""
    ours = (MALLOC, KEEPING_MALLOC)
    return {
        name: value for name, value in inherited({}).items() if not name.startswith(PREFIX) and (name, value) != ours
    }


class PlainProcess:
    """A process beside this worker that knows nothing of the job."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        command = [sys.executable, __file__, arguments.problem, "--meet-in", arguments.meet_in, "--plain"]
        place = [str(dist.get_rank()), str(dist.get_world_size())]
        self._process = subprocess.Popen(
            [*command, *place], env=plain_environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def turn_of(self, name: str) -> Turn:
        def turn(count: int) -> float:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(f"{count} {name}\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    return float(line.removeprefix(ANSWER))
            raise RuntimeError(f"the plain process of rank {dist.get_rank()} ended while it was to run {name}")

        return turn

    def close(self) -> None:
        """It ends when there is nothing more to read."""
        with self._process:
            pass


def serve(steps: dict[str, Step], orders: IO[str]) -> None:
    """The other side: do what is asked for until nobody asks."""
    for line in orders:
        count, _, name = line.strip().partition(" ")
        print(f"{ANSWER}{turn_of(steps[name])(int(count))}", flush=True)


@contextmanager
def _gloo(arguments: argparse.Namespace, kind: str, place: tuple[int, int]) -> Iterator[None]:
    meeting = f"file://{Path(arguments.meet_in) / kind}"
    dist.init_process_group("gloo", init_method=meeting, rank=place[0], world_size=place[1])
    try:
        yield
    finally:
        dist.destroy_process_group()


def measure(turns: dict[str, Turn], rounds: int, steps: int) -> dict[str, list[float]]:
    """Every round begins with another one, so that none always runs after the same."""
    for turn in turns.values():
        turn(WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(turns[name](steps))
    return seconds


def train(run: shoal.Run) -> None:
    arguments = parse()
    problem = PROBLEMS[arguments.problem]()
    with _gloo(arguments, "workers", (run.rank, run.world_size)):
        plain = PlainProcess(arguments)
        try:
            turns = {SHOAL: turn_of(shoal_step(run, problem))}
            for name, step in plain_steps(problem).items():
                turns[name], turns[name + IN_WORKER] = plain.turn_of(name), turn_of(step)
            seconds = measure(turns, arguments.rounds, arguments.steps)
        finally:
            plain.close()
    if run.is_first:
        size = sum(parameter.numel() for parameter in problem.model.parameters())
        print(json.dumps({"parameters": size, "batch": problem.batch, "seconds": seconds}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--meet-in", required=True, help="folder")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--plain", nargs=2, type=int, metavar=("RANK", "SIZE"), help="this is a plain process")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.plain is None:
        shoal.main(train)
        return
    die_with_parent()
    with _gloo(arguments, "plain", tuple(arguments.plain)):
        serve(plain_steps(PROBLEMS[arguments.problem]()), sys.stdin)


if __name__ == "__main__":
    main()
