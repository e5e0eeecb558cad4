"""A training step between two hosts that are network namespaces, for `against.py`. Needs root.

Host 0 runs the coordinator, both run a worker. Connections are not encrypted, so that a checkout from before TLS can be
compared.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HOSTS = ("10.78.0.1", "10.78.0.2")
SKIPPED = 20  # first steps, which are slower
SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import shoal
def train(run):
    torch.set_num_threads(1)
    model = run.model(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    torch.manual_seed(0)  # the same data on every worker
    data = TensorDataset(torch.randn(4096, 256))
    times = []
    for (x,) in run.batches(data, batch_size=16, steps=200):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    if run.is_first:
        with open(os.environ["BENCH_RESULT"], "w") as file:
            file.write(" ".join(map(repr, times)))
shoal.main(train)
"""


def seconds_of_a_step(python: str) -> float:
    """The median, with the Shoal that this Python has."""
    with tempfile.TemporaryDirectory() as name, _namespaces() as namespaces:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(16), encoding="ascii")
        address = f"{HOSTS[0]}:7000"
        shared = {**os.environ, "SHOAL_PLAINTEXT": "1", "BENCH_RESULT": str(folder / "times"), "OMP_NUM_THREADS": "1"}
        options = ("--address", address, "--token-file", str(token), "--workers", "2", "--run-dir", str(folder / "run"))
        commands = [(namespaces[0], shared, (python, "-m", "shoal", "coordinator", *options, "train.py"))]
        join = (python, "-m", "shoal", "join", address, "--token-file", str(token), "--threads", "1", "train.py")
        commands += [(namespace, shared, join) for namespace in namespaces]
        _run(commands, folder)
        times = [float(word) for word in (folder / "times").read_text(encoding="ascii").split()]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(times[SKIPPED:]))


def _run(commands: list[tuple[str, dict[str, str], tuple[str, ...]]], folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = []
        for namespace, variables, command in commands:
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *command],
                cwd=folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
            if len(processes) == 1 and process.stdout is not None:
                process.stdout.readline()  # the coordinator's, which says where it listens
        workers = processes[1:]  # the coordinator serves until it is ended
        said = [process.communicate(timeout=120)[0] for process in workers]
        if any(process.returncode for process in workers):
            sys.exit(f"the workers of a job between hosts ended with {[each.returncode for each in workers]}: {said}")


@contextlib.contextmanager
def _namespaces() -> Iterator[tuple[str, str]]:
    first, second = names = (f"shoal-a{os.getpid()}", f"shoal-b{os.getpid()}")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for name, host in zip(names, HOSTS, strict=True):
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
