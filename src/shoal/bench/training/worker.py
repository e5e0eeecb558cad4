"""The script that `shoal bench training` runs on every worker: one model, trained in several ways that take turns.

Shoal, DDP and a loop without any exchange run in Shoal's workers. DDP and the loop also run in plain processes, started
as torchrun would start them, one beside each worker: what a script without Shoal gets. Only one of all of them works at
a time, so that what else the machine does hits all alike. Prints one JSON line on rank 0.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import shoal
from shoal.bench.harness import Crew, OrderLine, in_turns
from shoal.bench.jobs import leave_results
from shoal.bench.training.figures import DDP, FAST_DDP, IN_WORKER, NO_EXCHANGE, SHOAL
from shoal.bench.training.problems import PROBLEMS, Problem
from shoal.data.loading import die_with_parent
from shoal.environment import KEEPING_MALLOC, MALLOC, PREFIX, inherited

FINISH_SECONDS = 60.0  # for a plain process to end by itself
WARM_UP = 5  # steps of each before the first measured one

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


def turn(step: Step, count: int) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - started) / count


def plain_environment() -> dict[str, str]:
    """This worker's without what the job has put there; the number of threads stays."""
    ours = (MALLOC, KEEPING_MALLOC)
    return {
        name: value for name, value in inherited({}).items() if not name.startswith(PREFIX) and (name, value) != ours
    }


@contextmanager
def _gloo(folder: str, kind: str, place: tuple[int, int]) -> Iterator[None]:
    meeting = f"file://{Path(folder) / kind}"
    dist.init_process_group("gloo", init_method=meeting, rank=place[0], world_size=place[1])
    try:
        yield
    finally:
        dist.destroy_process_group()


def train(run: shoal.Run) -> None:
    arguments = parse()
    problem = PROBLEMS[arguments.problem]()
    with _gloo(arguments.folder, "workers", (run.rank, run.world_size)), Crew() as crew:
        place = ("--plain", str(run.rank), str(run.world_size))
        plain = crew.start(
            "the plain process",
            __file__,
            arguments.problem,
            "--folder",
            arguments.folder,
            *place,
            env=plain_environment(),
        )

        def plain_turn(name: str, count: int) -> float:
            plain.order((count, name))
            return float(plain.answer())

        turns: dict[str, Turn] = {SHOAL: partial(turn, shoal_step(run, problem))}
        for name, step in plain_steps(problem).items():
            turns[name], turns[name + IN_WORKER] = partial(plain_turn, name), partial(turn, step)
        for warm_up in turns.values():
            warm_up(WARM_UP)
        seconds = in_turns({name: partial(each, arguments.steps) for name, each in turns.items()}, arguments.rounds)
        plain.finish(FINISH_SECONDS)  # all plain processes end together: none is killed amid its last exchange
    if run.is_first:
        size = sum(parameter.numel() for parameter in problem.model.parameters())
        leave_results(Path(arguments.folder), {"parameters": size, "batch": problem.batch, "seconds": seconds})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--folder", required=True, help="where processes meet and results go")
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
    orders = OrderLine()
    with _gloo(arguments.folder, "plain", tuple(arguments.plain)):
        steps = plain_steps(PROBLEMS[arguments.problem]())
        for count, name in orders:
            orders.answer(turn(steps[name], count))


if __name__ == "__main__":
    main()
