"""The script that `shoal bench checkpoint` runs: one model with Adam, trained in a loop in which states are saved.

Three jobs: `saves` measures all methods in turns in one process, `memory` one method in a fresh process, `throughput`
notes when each step ended while the job makes checkpoints by itself.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.bench.checkpoint import methods
from shoal.bench.harness import in_turns
from shoal.bench.jobs import PROGRESS, leave_results

LAYERS = 3  # few, so that at 400 MB a tensor is above 32 MiB: glibc then gives its memory back at once
REST = 3  # steps between two saves, which show how long a step usually takes
LONGEST = 10_000  # steps that a save may take before something is wrong
KEPT_COPIES = 3  # tensors in the state per parameter: the parameter and Adam's two moments


@dataclass(frozen=True)
class TimedStep:
    """One step, in seconds."""

    between: float  # from the end of the step before until its batch was there
    held: float  # before its update, for the sake of a save
    seconds: float  # from the end of the step before to its own


@dataclass(frozen=True)
class Saved:
    """One save."""

    blocked: float  # seconds that the training thread waited for it
    total: float  # seconds from its start to its end
    lost: float  # seconds that the steps until its end took longer than usual
    steps: int  # that overlapped with it


class TimedLoop:
    """A training loop that is taken step by step."""

    def __init__(self, run: shoal.Run, *, size_mb: float, batch: int) -> None:
        width = max(1, round(math.sqrt(size_mb * 1e6 / (KEPT_COPIES * 4 * LAYERS))))
        self.run = run
        self.model = run.model(nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)]))
        self.optimizer = run.optimizer(torch.optim.Adam(self.model.parameters(), lr=1e-4))
        data = TensorDataset(torch.randn(4 * batch * run.world_size, width))
        self._batches = iter(run.batches(data, batch_size=batch, epochs=10**9))

    def step(self, method: methods.Method | None = None, *, begins: bool = False) -> TimedStep:
        started = time.perf_counter()
        if method is not None and begins:
            method.begin()
        (x,) = next(self._batches)
        batch_there = time.perf_counter()
        self.model(x).square().mean().backward()
        backward_done = time.perf_counter()
        if method is not None:
            method.hold()
        may_update = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return TimedStep(batch_there - started, may_update - backward_done, time.perf_counter() - started)

    def state(self) -> dict[str, Any]:
        """What baselines save."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state_size(self) -> int:
        """In bytes."""
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)


def save_once(loop: TimedLoop, method: methods.Method) -> tuple[Saved, list[TimedStep]]:
    """Take some usual steps, then save with one method while training goes on."""
    usual = [loop.step() for _ in range(REST + 1)]
    method.announce()
    started = time.perf_counter()
    during = [loop.step(method, begins=True)]
    while method.ended is None:
        during.append(loop.step(method))
        if len(during) > LONGEST:
            raise RuntimeError(f"a save has not ended after {LONGEST} steps")
    between = statistics.median(step.between for step in usual)
    length = statistics.median(step.seconds for step in usual)
    saved = Saved(
        blocked=max(0.0, during[0].between - between) + sum(step.held for step in during),
        total=method.ended - started,
        lost=sum(step.seconds - length for step in during),
        steps=len(during),
    )
    method.clean()
    return saved, usual


def measure_saves(loop: TimedLoop, folder: Path, turns: int) -> dict[str, Any]:
    """Every method once per turn, in an order that rotates; the first turn is not counted."""
    made = {name: methods.make(name, loop.run, loop.state, folder) for name in methods.NAMES}
    variants = {name: partial(save_once, loop, method) for name, method in made.items()}

    def tell(turn: int) -> None:
        print(f"{PROGRESS}turn {turn} of {turns}" if turn else f"{PROGRESS}warm", flush=True)

    found = in_turns(variants, turns, uncounted=1, told=tell)
    methods.close_all(list(made.values()))
    seconds = [step.seconds for turns_of_one in found.values() for _, usual in turns_of_one for step in usual]
    saves = {name: [vars(saved) for saved, _ in made_by] for name, made_by in found.items()}
    return {"state_bytes": loop.state_size(), "step": statistics.median(seconds), "saves": saves}


def measure_memory(loop: TimedLoop, folder: Path, name: str) -> dict[str, Any]:
    """By how much the process's peak grows when it saves twice, in bytes."""
    method = methods.make(name, loop.run, loop.state, folder)
    for step in range(3 * REST):
        if step == REST:  # the optimizer has its state by now
            _reset_peak()
        loop.step()
    before = _of_status("VmHWM")
    for _ in range(2):
        save_once(loop, method)
    growth = _of_status("VmHWM") - before
    helpers = sum(_of_status("RssAnon", child) for child in _children())
    methods.close_all([method])
    return {"state_bytes": loop.state_size(), "before": before, "growth": growth, "helpers": helpers}


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _of_status(field: str, process: str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _children() -> list[str]:
    """Processes that this one has started: DCP's, for one method."""
    return [child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]


def measure_throughput(loop: TimedLoop, checkpoints: int) -> dict[str, Any]:
    """When each step ended, until the job has begun that many checkpoints."""
    run, begun, last = loop.run, 0, -1
    ends: list[float] = []
    while True:
        try:
            loop.step()
        except StopIteration:
            return {"state_bytes": loop.state_size(), "ends": ends}
        ends.append(time.perf_counter())
        if (step := run._session.saver.last_step) > last:
            begun, last = begun + 1, step
            if run.is_first:
                print(f"{PROGRESS}checkpoint {begun} of {checkpoints}", flush=True)
                if begun == checkpoints:
                    run.stop("everything is measured")


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=("saves", "memory", "throughput"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size-mb", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--method", default="")
    arguments = parser.parse_args()
    loop = TimedLoop(run, size_mb=arguments.size_mb, batch=arguments.batch)
    try:
        if arguments.job == "saves":
            found = measure_saves(loop, arguments.folder, arguments.count)
        elif arguments.job == "memory":
            found = measure_memory(loop, arguments.folder, arguments.method)
        else:
            found = measure_throughput(loop, arguments.count)
    except StopIteration:  # Ctrl-C ends the loop, and there is no result
        return
    if run.is_first:
        leave_results(arguments.folder, found)


if __name__ == "__main__":
    shoal.main(train)
