"""Steps per second of 1 to 8 workers on four machines with links of 1 Gbit/s, against one worker. Needs root.

    PYTHONPATH=tests python benchmarks/bench_scaling.py [--workers 1 2 4 6 8] [--rounds 3] [--plot scaling.svg]

The machines are network namespaces of this one, so all share its cores. A step therefore computes next to nothing: its
backward sleeps for half a second, a sixteenth before the gradients of each of 16 layers, 4 MiB in all, so that the
exchange has backward to hide behind as it would on machines with cores of their own. Each round has one job of each
size, whose rate is that of its median step; efficiency is the rate over that of one worker in the same round, and the
median over rounds counts. Ends with 1 if it is below 95% for the largest job. On a machine that others use,
`--priority -10` lets workers go first once they train, which takes little from anybody, and the column "quarter" has
the efficiency by the fastest quarter of steps, which others have disturbed least.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from scaling_plot import scaling_plot
from shoal.bench.verdict import Bound, exit_code, table
from support.network import Network

MACHINES = (1, 2, 3, 4)  # 0 has the coordinator
RATE, BURST = "1gbit", "128k"  # a millisecond of it
BOUND = 0.95
SKIPPED = 5  # first steps: connections, measuring of links
PATIENCE = 180.0  # seconds
SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import shoal
LAYERS, WIDTH, SECONDS = 16, 256, 0.5
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(SECONDS / LAYERS)
        return gradient
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    def forward(self, x):
        for layer in self.layers:
            x = Slow.apply(layer(x))
        return x
def train(run):
    for thread in os.listdir("/proc/self/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), int(os.environ["BENCH_PRIORITY"]))
    model = run.model(Net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    times = []
    for (x,) in run.batches(TensorDataset(torch.ones(4096, WIDTH)), batch_size=4, steps=int(os.environ["BENCH_STEPS"])):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic())
    if run.is_first:
        with open(os.environ["BENCH_RESULT"], "w") as file:
            file.write(" ".join(map(repr, times)))
shoal.main(train)
"""


@dataclass(frozen=True)
class Rate:
    """Steps per second of one job, without its first ones."""

    median: float  # by its median step
    quarter: float  # by the slowest of its fastest quarter of steps


def rate(workers: int, steps: int, bucket_mb: str) -> Rate:
    with tempfile.TemporaryDirectory() as name, Network(1 + len(MACHINES)) as network:
        folder = Path(name)
        for machine in MACHINES:
            network.slow_down(machine, RATE, BURST)
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        (folder / "token").touch(0o600)
        (folder / "token").write_text(secrets.token_hex(16), encoding="ascii")
        address = f"{network.host(0)}:7000"
        job = ("--workers", str(workers), "--run-dir", "run", "--checkpoint-every", "never", "--bucket-mb", bucket_mb)
        own = {"BENCH_RESULT": str(folder / "times"), "BENCH_STEPS": str(steps), "OMP_NUM_THREADS": "1"}
        started = {"cwd": folder, "env": {**os.environ, **own}, "stderr": subprocess.STDOUT}
        place = ("--address", address, "--token-file", "token")
        coordinator = network.start(0, "-m", "shoal", "coordinator", *place, *job, "train.py", **started)
        assert coordinator.stdout is not None
        coordinator.stdout.readline()  # it listens
        joins = ("-m", "shoal", "join", address, "--token-file", "token", "--threads", "1")
        joined = [network.start(MACHINES[worker % len(MACHINES)], *joins, **started) for worker in range(workers)]
        said = [process.communicate(timeout=PATIENCE)[0] for process in joined]
        if any(process.returncode for process in joined):
            sys.exit(f"a job of {workers} workers ended with {[each.returncode for each in joined]}: {said}")
        times = [float(word) for word in (folder / "times").read_text(encoding="ascii").split()][SKIPPED:]
        quarter, median, _ = statistics.quantiles([later - earlier for earlier, later in itertools.pairwise(times)])
        return Rate(1 / median, 1 / quarter)


def link_rate(size: int = 64 * 2**20) -> float:
    """Gbit/s that one connection gets between two machines."""
    with Network(2) as network:
        network.slow_down(0, RATE, BURST)
        with network.inside(1):
            listener = socket.create_server((network.host(1), 0))
        with network.inside(0):
            sender = socket.socket()
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with listener, sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
            began = time.monotonic()
            thread.start()
            left = size
            while left > 0:
                left -= len(receiver.recv(2**20))
            seconds = time.monotonic() - began
            thread.join()
    return 8e-9 * size / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 6, 8], help="sizes of jobs, 1 among them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of each job")
    parser.add_argument("--bucket-mb", default="4", help="of the jobs, whose own default it is: a group's size at most")
    parser.add_argument("--priority", default="0", help="of workers that train, from -20 to 19")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    options = parser.parse_args()
    os.environ["BENCH_PRIORITY"] = options.priority
    sizes = sorted({1, *options.workers})
    print(f"a link carries {link_rate():.2f} Gbit/s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    rates: dict[int, list[Rate]] = {size: [] for size in sizes}
    for number in range(options.rounds):
        for size in sizes if number % 2 == 0 else reversed(sizes):
            found = rate(size, options.steps, options.bucket_mb)
            rates[size].append(found)
            print(f"round {number + 1}, {size} workers: {found.median:.3f}, quarter {found.quarter:.3f}", flush=True)
    print("\n| workers | steps/s, median | efficiency, median | from | to | quarter |")
    print("| --- | --- | --- | --- | --- | --- |")
    efficiency = {}
    for size in sizes:
        pairs = list(zip(rates[size], rates[1], strict=True))
        ratios = [own.median / alone.median for own, alone in pairs]
        quarter = statistics.median(own.quarter / alone.quarter for own, alone in pairs)
        efficiency[size] = statistics.median(ratios)
        middle = statistics.median(own.median for own in rates[size])
        spread = f"{efficiency[size]:.1%} | {min(ratios):.1%} | {max(ratios):.1%}"
        print(f"| {size} | {middle:.3f} | {spread} | {quarter:.1%} |")
    if options.plot:
        options.plot.write_text(scaling_plot(efficiency, BOUND), encoding="utf-8")
    load = f"load {os.getloadavg()[0]:.1f}"
    bounds = [Bound(f"efficiency of {sizes[-1]} workers", efficiency[sizes[-1]], "at least", BOUND, load)]
    print(f"\n{table(bounds)}")
    return exit_code(bounds)


if __name__ == "__main__":
    sys.exit(main())
