"""What looking out for mistakes costs: the same steps and the same opened files with and without it, and the comparison
of two workers' data, which comes once per loop.

In microseconds of processor time, since others use the machine too. Run it as `python benchmarks/bench_watches.py`; it
fails where a watch costs more than it may. With `--tiny` it takes seconds, and its figures mean nothing. Dated results
are in `bench_watches.md`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.strategies.peers.solo_peers import SoloPeers
from shoal.training.loop import loop
from shoal.training.mistakes import file_hook
from shoal.training.mistakes.step_watch import StepWatch
from shoal.training.mistakes.truncated_files import TruncatedFiles
from shoal.training.recovery import restart
from shoal.training.reporting.reporter import Reporter

MOST_PER_STEP = 100.0  # microseconds
MOST_PER_FILE = 20.0
DEPTH = 20  # calls between the script's first line and the one that opens a file


@dataclass(frozen=True)
class Sizes:
    steps: int = 500  # of each loop
    files: int = 500
    rounds: int = 7  # the best of so many counts: others use the machine too


TINY = Sizes(steps=10, files=10, rounds=2)


def steps_per_loop(run: shoal.Run, count: int) -> float:
    """Processor seconds of one step of a model of 20 small layers, whose optimizer is handed over."""
    model = run.model(nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    started = time.thread_time()
    for _ in run.batches(TensorDataset(torch.zeros(count, 1)), batch_size=1):
        optimizer.step()
    return (time.thread_time() - started) / count


def compare_loops(run: shoal.Run, steps: int, rounds: int, file: str) -> None:
    """In one of two workers: write down how many processor seconds comparing new data takes at the start of a loop."""
    model = run.model(nn.Linear(64, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    spent: list[float] = []
    compare = loop.compare_data

    def timed(*given: object) -> None:
        started = time.process_time()
        compare(*given)  # type: ignore[arg-type]  # what it is given
        spent.append(time.process_time() - started)

    loop.compare_data = timed  # type: ignore[assignment]  # to measure it
    for number in range(rounds):
        data = TensorDataset(torch.full((2 * steps, 64), float(number)))
        for (x,) in run.batches(data, batch_size=1):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if run.is_first:
        Path(file).write_text(json.dumps(spent), encoding="utf-8")


def per_comparison(folder: Path, sizes: Sizes) -> float:
    """Microseconds that two workers spend on comparing their data, per loop."""
    file = folder / "spent.json"
    given = {"steps": sizes.steps, "rounds": sizes.rounds, "file": str(file)}
    shoal.launch(compare_loops, arguments=given, workers=2, run_dir=str(folder / "run"), progress="none", threads=1)
    spent = json.loads(file.read_text(encoding="utf-8"))
    assert len(spent) == sizes.rounds
    return float(min(spent)) * 1e6


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


def by_flags(flags: int) -> Callable[[str], None]:
    return lambda name: os.close(os.open(name, flags))


def write_nothing(*_arguments: object, **_named: object) -> None:
    """In place of what writes a file of safetensors, which takes ten times as long as the watch."""


def by_safetensors(name: str) -> None:
    safetensors.torch.save_file({}, name)


def opened(names: list[str], write: Callable[[str], None], depth: int = DEPTH) -> float:
    """Processor seconds for opening one file that is there, from some calls deep."""
    if depth:
        return opened(names, write, depth - 1)
    started = time.thread_time()
    for name in names:
        write(name)
    return (time.thread_time() - started) / len(names)


def per_file(folder: Path, write: Callable[[str], None], sizes: Sizes, *, is_new: bool = True) -> float:
    """Microseconds that the watch adds to opening a file. `is_new`: files that it has not seen."""
    names = [str(folder / str(number)) for number in range(sizes.files)]
    for name in names:
        Path(name).touch()
    without, seen = [], []
    for _ in range(sizes.rounds):
        file_hook.unwatch()
        without.append(opened(names, write))
        files = TruncatedFiles(SoloPeers(lambda _: None))
        file_hook.watch(files)
        if not is_new:
            opened(names, write)
        seen.append(opened(names, write))
        file_hook.unwatch()
    return (min(seen) - min(without)) * 1e6


def verdict(what: str, cost: float, most: float) -> bool:
    print(f"{what}: {cost:.1f} µs (at most {most:.0f}){'' if cost <= most else ': too much'}")
    return cost <= most


def main(sizes: Sizes) -> int:
    torch.set_num_threads(1)
    for module in (safetensors, safetensors.torch):  # before the first watch, which wraps what it finds there
        module.serialize_file = write_nothing  # type: ignore[attr-defined]  # to leave it out
    loop_of_steps = partial(steps_per_loop, count=sizes.steps)
    pairs = [(watched(loop_of_steps), unwatched(loop_of_steps)) for _ in range(sizes.rounds)]
    steps = (min(pair[0] for pair in pairs) - min(pair[1] for pair in pairs)) * 1e6
    with tempfile.TemporaryDirectory() as folder:
        compared = per_comparison(Path(folder), sizes)
    with tempfile.TemporaryDirectory() as folder:
        emptied = by_flags(os.O_WRONLY | os.O_TRUNC)
        read = per_file(Path(folder), by_flags(os.O_RDONLY), sizes)
        first = per_file(Path(folder), emptied, sizes)
        again = per_file(Path(folder), emptied, sizes, is_new=False)
        saved = per_file(Path(folder), by_safetensors, sizes)
    print(f"comparing the data of two workers: {compared:.0f} µs per loop")
    kept = [
        verdict("a step", steps, MOST_PER_STEP),
        verdict(f"a step of two workers, in loops of {sizes.steps}", steps + compared / sizes.steps, MOST_PER_STEP),
        verdict("a file that is read", read, MOST_PER_FILE),
        verdict("a file that is emptied, the first time", first, MOST_PER_FILE),
        verdict("a file that is emptied again", again, MOST_PER_FILE),
        verdict("a file of safetensors, the first time", saved, MOST_PER_FILE),
    ]
    print("all within their limits" if all(kept) else "a watch costs more than it may")
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main(TINY if "--tiny" in sys.argv else Sizes()))
