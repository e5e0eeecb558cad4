"""From the command to the first applied step on the slowest worker: `shoal run -n 4` against torchrun with DDP.

    python benchmarks/bench_start_up.py [--workers 4] [--rounds 5]

The two take turns, so that what else the machine does hits both alike; medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = """
import os, time
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
torch.manual_seed(0)  # the same data on every worker
data = TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
def net():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
def first_step_done():
    open(os.path.join(os.environ["BENCH_FOLDER"], "first-" + os.environ["RANK"]), "w").write(repr(time.time()))
"""
SHOAL = (
    MODEL
    + """
import shoal
def train(run):
    model = run.model(net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data, batch_size=16, steps=1):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        first_step_done()
shoal.main(train)
"""
)
DDP = (
    MODEL
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    first_step_done()
    break
dist.destroy_process_group()
"""
)


def seconds_to_first_step(command: list[str], folder: Path, workers: int) -> float:
    marks = [folder / f"first-{rank}" for rank in range(workers)]
    for mark in marks:
        mark.unlink(missing_ok=True)
    started = time.time()
    variables = {**os.environ, "BENCH_FOLDER": str(folder)}
    done = subprocess.run(command, cwd=folder, env=variables, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return max(float(mark.read_text()) for mark in marks) - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "shoal_script.py").write_text(SHOAL)
        (folder / "ddp_script.py").write_text(DDP)
        commands = {
            "shoal": [sys.executable, "-m", "shoal", "run", "-n", str(options.workers), "shoal_script.py"],
            "torchrun": [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(options.workers), "ddp_script.py"),
            ],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(options.rounds):
            for name, command in sorted(commands.items(), reverse=bool(turn % 2)):
                seconds[name].append(seconds_to_first_step(command, folder, options.workers))
                print(f"{name:<9} {seconds[name][-1]:6.2f} s", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"median: shoal {medians['shoal']:.2f} s, torchrun {medians['torchrun']:.2f} s")
    print(f"shoal takes {medians['shoal'] / medians['torchrun']:.2f} of torchrun's time, {options.workers} workers")


if __name__ == "__main__":
    main()
