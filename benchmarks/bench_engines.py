"""What it costs that another engine starts the workers: throughput, start and recovery, against local workers.

    PYTHONPATH=tests python benchmarks/bench_engines.py [--engine ssh] [--part throughput] [--pairs 5]

throughput  steps per second of 2 workers on one node, by the median step, over those of 2 local ones with the engine
            idle beside them; "quarter": by the fastest quarter of steps, which others on this machine disturb least
start       from the command to the first applied step on the slowest of 8 workers: by ssh on 8 hosts that are all this
            machine, over 8 local ones
recovery    one of 2 nodes is killed, or one of 2 local workers: until the other worker has applied its next step, until
            the replacement's process runs (`placed`: what the engine takes), and until that one has applied a step

Both of a pair run one after the other, and every second pair begins with the other. What counts is the median over
pairs of the ratio. Ends with 1 if a bound is missed. Needs root, sshd and Slurm.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_ways import ENGINES, LOCAL, Way, ssh_machines

THROUGHPUT_BOUND = 0.95  # at least
START_BOUND = 1.5  # at most
STARTED = 8  # workers
SKIPPED = 50  # first steps
PATIENCE = 180.0  # seconds
# Arguments: a folder, the number of steps, seconds to sleep in each. Each worker has a diary in that folder.
SCRIPT = """
import os, sys, time
began = time.monotonic()
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
import shoal
folder, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)  # the same data on every worker
data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
def train(run):
    model = run.model(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    with open(os.path.join(folder, "diary-" + os.environ["SHOAL_WORKER"]), "w") as diary:
        print(began, os.getpid(), file=diary, flush=True)
        for x, y in run.batches(data, batch_size=32, steps=steps):
            time.sleep(pause)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.applied:
                print(time.monotonic(), run.world_size, file=diary, flush=True)
shoal.main(train)
"""


@dataclass(frozen=True)
class Diary:
    began: float  # when its process ran
    pid: int  # in its own namespace
    applied: list[float]  # when steps were
    sizes: list[int]  # workers that took part in each


@dataclass
class Job:
    """One job of the script, in a folder of its own."""

    folder: Path
    process: subprocess.Popen[str]

    def diaries(self) -> dict[int, Diary]:
        found = {}
        for path in self.folder.glob("diary-*"):
            first, *lines = path.read_text(encoding="ascii").splitlines() or [""]
            if lines:
                began, pid = first.split()
                at, sizes = zip(*(line.split() for line in lines if len(line.split()) == 2), strict=True)
                found[int(path.name[6:])] = Diary(float(began), int(pid), [*map(float, at)], [*map(int, sizes)])
        return found

    def wait_for(self, look: Callable[[dict[int, Diary]], bool]) -> dict[int, Diary]:
        limit = time.monotonic() + PATIENCE
        while not look(found := self.diaries()):
            if self.process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"a job did not get on: {found}, {self.process.communicate()}")
            time.sleep(0.02)
        return found

    def end(self) -> None:
        said = self.process.communicate(timeout=PATIENCE)
        if self.process.returncode != 0:
            sys.exit(f"a job ended with {self.process.returncode}: {said}")


def start_job(command: tuple[str, ...], variables: Mapping[str, str], workers: int, *arguments: str) -> Job:
    folder = Path(tempfile.mkdtemp(dir=os.environ["BENCH_FOLDER"]))
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    options = ("-n", str(workers), "--threads", "1", "--checkpoint-every", "never", "--progress", "plain")
    process = subprocess.Popen(
        [*command, *options, "train.py", str(folder), *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Job(folder, process)


# What is measured


def throughput(way: Way) -> dict[str, float]:
    """Steps per second."""
    job = start_job(way.alone, way.variables, 2, "600", "0")
    job.end()
    applied = job.diaries()[0].applied[SKIPPED:]
    quarter, median, _ = statistics.quantiles([later - earlier for earlier, later in itertools.pairwise(applied)])
    return {"steps/s": 1 / median, "steps/s, quarter": 1 / quarter}


def start_up(way: Way) -> dict[str, float]:
    """Seconds from the command to the first step of the slowest worker."""
    began = time.monotonic()
    job = start_job(way.alone, way.variables, STARTED, "1", "0")
    job.end()
    return {"s": max(diary.applied[0] for diary in job.diaries().values()) - began}


def recovery(way: Way) -> dict[str, float]:
    """Seconds from the kill."""
    job = start_job(way.spread, way.variables, 2, "100000", "0.05")
    before = job.wait_for(lambda found: len(found) == 2 and all(len(each.applied) > 20 for each in found.values()))
    killed = time.monotonic()
    if way.lose is not None:
        way.lose(before[1].pid)
    else:
        os.kill(before[1].pid, signal.SIGKILL)
    after = job.wait_for(lambda found: any(worker > 1 and each.applied for worker, each in found.items()))
    newcomer = max(after)
    alone = [at for at, size in zip(after[0].applied, after[0].sizes, strict=True) if at > killed and size == 1]
    job.process.send_signal(signal.SIGINT)
    job.process.communicate(timeout=PATIENCE)
    if way.mend is not None:
        way.mend()
    return {
        "next step": min(alone, default=math.nan) - killed,  # nan: it came together with the replacement
        "placed": after[newcomer].began - killed,
        "replaced": after[newcomer].applied[0] - killed,
    }


# Pairs


Pair = tuple[dict[str, float], dict[str, float]]  # with the engine, and local


def in_turns(pairs: int, first: Callable[[], dict[str, float]], second: Callable[[], dict[str, float]]) -> list[Pair]:
    found: list[Pair] = []
    for number in range(pairs):
        if number % 2 == 0:
            own = first()
            found.append((own, second()))
        else:
            other = second()
            found.append((first(), other))
        said = (" ".join(f"{value:.2f}" for value in one.values()) for one in found[-1])
        print(f"  pair {number + 1}: {' and '.join(said)}", flush=True)
    return found


def told(what: str, found: list[Pair], *, bound: float, is_least: bool) -> bool:
    """Print the medians, and return whether the first figure of all keeps to the bound."""
    is_held = True
    for number, unit in enumerate(found[0][0]):
        ratios = [own[unit] / other[unit] for own, other in found]
        middle = statistics.median(ratios)
        own, local = (statistics.median(pair[side][unit] for pair in found) for side in (0, 1))
        said = (
            f"{what}: {own:.2f} {unit}, local {local:.2f}, ratio {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
        if number == 0:
            is_held = middle >= bound if is_least else middle <= bound
            said += f", bound {bound} {'holds' if is_held else 'MISSED'}"
        print(f"{said}; load {os.getloadavg()[0]:.1f}", flush=True)
    return is_held


def measure(engine: str, folder: Path, options: argparse.Namespace) -> bool:
    """Whether all bounds are held."""
    is_held = True
    with ENGINES[engine](folder) as way:
        if "throughput" in options.part:
            found = in_turns(options.pairs, lambda: throughput(way), lambda: throughput(LOCAL))
            is_held &= told(f"throughput, {engine}", found, bound=THROUGHPUT_BOUND, is_least=True)
        if "recovery" in options.part:
            by_way: dict[str, list[dict[str, float]]] = {engine: [], "local": []}
            for _ in range(options.kills):
                by_way[engine].append(recovery(way))
                by_way["local"].append(recovery(LOCAL))
            for name, all_found in by_way.items():
                middles = {what: statistics.median(each[what] for each in all_found) for what in all_found[0]}
                print(f"recovery, {name}: " + ", ".join(f"{what} {value:.2f} s" for what, value in middles.items()))
    return is_held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("throughput", "start", "recovery")
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="this alone; may be given again")
    parser.add_argument("--part", choices=parts, action="append", help="this alone; may be given again")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    options.part = options.part or parts
    is_held = True
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="shoal-engines-") as name:
        os.environ["BENCH_FOLDER"] = name
        if "start" in options.part:
            with ssh_machines(Path(name), STARTED) as way:
                found = in_turns(options.pairs, lambda: start_up(way), lambda: start_up(LOCAL))
            is_held &= told(f"start of {STARTED} workers, ssh", found, bound=START_BOUND, is_least=False)
        for engine in options.engine or ENGINES:
            is_held &= measure(engine, Path(name), options)
    return 0 if is_held else 1


if __name__ == "__main__":
    sys.exit(main())
