"""What looking out for mistakes costs: the same steps and the same opened files with and without it.

In microseconds of processor time, since others use the machine too. Run it as `python benchmarks/bench_watches.py`; it
fails where a watch costs more than it may.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.strategies.peers.solo_peers import SoloPeers
from shoal.training.mistakes import file_hook
from shoal.training.mistakes.step_watch import StepWatch
from shoal.training.mistakes.truncated_files import TruncatedFiles
from shoal.training.recovery import restart
from shoal.training.reporting.reporter import Reporter

MOST_PER_STEP = 100.0  # microseconds
MOST_PER_FILE = 20.0
STEPS = 500
FILES = 500
DEPTH = 20  # calls between the script's first line and the one that opens a file
ROUNDS = 7  # the best of so many counts: others use the machine too


def steps_per_loop(run: shoal.Run) -> float:
    """Processor seconds of one step of a model of 20 small layers, whose optimizer is handed over."""
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
    """The same without a watch on optimizer steps, and without looking for files to tell of."""

    class Blind(nullcontext["Blind"]):
        def __enter__(self) -> Blind:
            return self

        def end(self) -> None:
            pass

    tell_files = Reporter.tell_files
    restart.StepWatch = lambda _session: Blind()  # type: ignore[assignment, misc]  # to leave it out
    Reporter.tell_files = lambda _: None  # type: ignore[method-assign]
    try:
        return watched(train)
    finally:
        restart.StepWatch = StepWatch  # type: ignore[misc]  # as it was
        Reporter.tell_files = tell_files  # type: ignore[method-assign]


def opened(folder: Path, flags: int, depth: int = DEPTH) -> float:
    """Processor seconds for opening one file that is there, from some calls deep."""
    if depth:
        return opened(folder, flags, depth - 1)
    names = [str(folder / str(number)) for number in range(FILES)]
    started = time.thread_time()
    for name in names:
        os.close(os.open(name, flags))
    return (time.thread_time() - started) / FILES


def per_file(folder: Path, flags: int, *, is_new: bool) -> float:
    """Microseconds that the watch adds to opening a file. `is_new`: files that it has not seen."""
    for number in range(FILES):
        (folder / str(number)).touch()
    without, seen = [], []
    for _ in range(ROUNDS):
        file_hook.unwatch()
        without.append(opened(folder, flags))
        files = TruncatedFiles(SoloPeers(lambda _: None))
        file_hook.watch(files)
        if not is_new:
            opened(folder, flags)
        seen.append(opened(folder, flags))
        file_hook.unwatch()
    return (min(seen) - min(without)) * 1e6


def verdict(what: str, cost: float, most: float) -> bool:
    print(f"{what}: {cost:.1f} µs (at most {most:.0f}){'' if cost <= most else ': too much'}")
    return cost <= most


def main() -> int:
    torch.set_num_threads(1)
    pairs = [(watched(steps_per_loop), unwatched(steps_per_loop)) for _ in range(ROUNDS)]
    steps = (min(pair[0] for pair in pairs) - min(pair[1] for pair in pairs)) * 1e6
    with tempfile.TemporaryDirectory() as folder:
        read = per_file(Path(folder), os.O_RDONLY, is_new=True)
        first = per_file(Path(folder), os.O_WRONLY | os.O_TRUNC, is_new=True)
        again = per_file(Path(folder), os.O_WRONLY | os.O_TRUNC, is_new=False)
    kept = [
        verdict("a step", steps, MOST_PER_STEP),
        verdict("a file that is read", read, MOST_PER_FILE),
        verdict("a file that is emptied, the first time", first, MOST_PER_FILE),
        verdict("a file that is emptied again", again, MOST_PER_FILE),
    ]
    print("all within their limits" if all(kept) else "a watch costs more than it may")
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
