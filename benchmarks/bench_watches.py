"""What looking out for mistakes costs a step, in microseconds: the same steps with and without each watch.

Run it as `python benchmarks/bench_watches.py`; it fails where a watch costs more than it may.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.training.mistakes.step_watch import StepWatch
from shoal.training.recovery import restart

MOST_PER_STEP = 100.0  # microseconds
STEPS = 500
ROUNDS = 7  # the best of so many counts, by the processor's time: others use the machine too


def steps_per_loop(run: shoal.Run) -> float:
    """Seconds of one step of a model of 20 small layers, whose optimizer is handed over."""
    model = run.model(nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    started = time.thread_time()
    for _ in run.batches(TensorDataset(torch.zeros(STEPS, 1)), batch_size=1):
        optimizer.step()
    return (time.thread_time() - started) / STEPS


def watched(train: Callable[[shoal.Run], float]) -> float:
    return shoal.main(train, progress="none")


def unwatched(train: Callable[[shoal.Run], float]) -> float:
    """The same without a watch on optimizer steps."""

    class Blind(nullcontext["Blind"]):
        def __enter__(self) -> Blind:
            return self

        def end(self) -> None:
            pass

    restart.StepWatch = lambda _session: Blind()  # type: ignore[assignment, misc]  # to leave it out
    try:
        return watched(train)
    finally:
        restart.StepWatch = StepWatch  # type: ignore[misc]  # as it was


def main() -> int:
    torch.set_num_threads(1)
    pairs = [(watched(steps_per_loop), unwatched(steps_per_loop)) for _ in range(ROUNDS)]
    cost = (min(pair[0] for pair in pairs) - min(pair[1] for pair in pairs)) * 1e6
    print(f"optimizer steps: {cost:.1f} µs a step (at most {MOST_PER_STEP:.0f})")
    return int(cost > MOST_PER_STEP)


if __name__ == "__main__":
    sys.exit(main())
