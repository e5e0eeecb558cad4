"""Hundreds of strangers on every port of a job: it trains on, publishes checkpoints, and lets new members in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.environment import parse_address
from shoal.events import CheckpointLost, CheckpointPublished, ServerJoined, WorkerJoined
from shoal.job_config import from_toml
from shoal.transport.connection.strangers import MOST, RESERVE
from shoal.values import Address
from support.flood import flood
from support.launcher import PATIENCE, command_of, events_in, leftovers, started, wait_for_file, write_script

# Takes steps until the file `done` is there, with a checkpoint after every one of them.
SAVING_STEPS = """
with open("started", "a") as file:
    print(me.worker, os.getpid(), file=file)
step = 0
while not os.path.exists("done"):
    step = max(step + 1, 1000 * generation.number)
    rank = generation.rank_of(me.worker)
    report(step, loss=1.0)
    save(step)
    regroup(step)
leave(step)
"""


class Job:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    @property
    def address(self) -> Address:
        text = (self.folder / "run" / "config.toml").read_text(encoding="utf-8")
        return parse_address(from_toml(text, origin="test").address, named="--address")

    @property
    def coordinator(self) -> psutil.Process:
        [found] = [p for p in psutil.Process(self.process.pid).children() if "coordinator" in command_of(p)]
        return found

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in events_in(self.folder / "run"))

    def wait_for(self, kind: type, count: int) -> None:
        limit = time.monotonic() + PATIENCE
        while self.count(kind) < count:
            assert self.process.poll() is None
            assert time.monotonic() < limit, [type(event).__name__ for event in events_in(self.folder / "run")][-20:]
            time.sleep(0.05)


@contextlib.contextmanager
def job(folder: Path, *, descriptors: int = 0) -> Iterator[Job]:
    """Two workers that make checkpoints all the time."""
    write_script(folder, SAVING_STEPS, saves=True)
    options = ("-n", "2", "--run-dir", "run", "--keep-checkpoints", "2")
    with started(folder, "run", *options, "script.py", descriptors=descriptors) as process:
        made = Job(folder, process)
        wait_for_file(folder / "started", count=2)
        made.wait_for(CheckpointPublished, 2)
        yield made


@pytest.mark.parametrize(
    ("strangers", "descriptors"),
    [
        (600, 1024),
        pytest.param(600, 256, marks=pytest.mark.long),
        pytest.param(2000, 1024, marks=pytest.mark.long),
        pytest.param(2000, 256, marks=pytest.mark.long),
        pytest.param(2000, 0, marks=pytest.mark.long),
    ],
)
def test_strangers_leave_members_and_checkpoints_their_descriptors(
    strangers: int, descriptors: int, tmp_path: Path
) -> None:
    with job(tmp_path, descriptors=descriptors) as run, flood(run.address, strangers) as silent:
        most = MOST + 2 * RESERVE
        assert run.coordinator.num_fds() <= (min(most, descriptors - RESERVE // 4) if descriptors else most)
        assert silent.still_open() <= most
        run.wait_for(CheckpointPublished, run.count(CheckpointPublished) + 3)
        victim = int((tmp_path / "started").read_text().splitlines()[1].split()[1])
        os.kill(victim, signal.SIGKILL)
        run.wait_for(WorkerJoined, 3)
        run.wait_for(CheckpointPublished, run.count(CheckpointPublished) + 3)
        lost = [event.reason for event in events_in(tmp_path / "run") if isinstance(event, CheckpointLost)]
        assert not [reason for reason in lost if "Too many open files" in reason]
        (tmp_path / "done").touch()
        stdout, stderr = run.process.communicate(timeout=PATIENCE)
    assert run.process.returncode == 0, stdout + stderr
    assert leftovers(tmp_path) == []


TRAINING = """
import os, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import shoal

def train(run):
    model = run.model(nn.Linear(100, 200))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for (x,) in run.batches(TensorDataset(torch.randn(64, 100)), batch_size=1, epochs=100_000):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        if os.path.exists("done"):
            run.stop("done")

if __name__ == "__main__":
    shoal.main(train)
"""


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
def test_a_job_trains_on_with_strangers_on_every_port(strategy: str, tmp_path: Path) -> None:
    """With 256 descriptors per process, 600 strangers on each port, and a worker that dies meanwhile."""
    (tmp_path / "script.py").write_text(TRAINING)
    options = ["-n", "2", "--run-dir", "run", "--strategy", strategy, "--checkpoint-every", "20"]
    options += ["--servers", "2"] if strategy == "parameter-server" else []
    with (
        started(tmp_path, "run", *options, "script.py", descriptors=256) as process,
        contextlib.ExitStack() as floods,
    ):
        run = Job(tmp_path, process)
        run.wait_for(CheckpointPublished, 2)
        happened = events_in(tmp_path / "run")
        ports = [event.address for event in happened if isinstance(event, WorkerJoined | ServerJoined)]
        ports.append(str(run.address))
        for child in psutil.Process(process.pid).children():
            ports += {word.partition("=")[2] for word in command_of(child) if word.startswith("--keeper=")}
        silent = [floods.enter_context(flood(parse_address(port, named="a port"), 600)) for port in sorted(set(ports))]
        assert len(silent) == (3 if strategy == "all-reduce" else 6)
        assert all(each.still_open() <= 256 - RESERVE for each in silent)
        run.wait_for(CheckpointPublished, run.count(CheckpointPublished) + 2)
        os.kill(next(event.process for event in happened if isinstance(event, WorkerJoined)), signal.SIGKILL)
        run.wait_for(WorkerJoined, 3)
        run.wait_for(CheckpointPublished, run.count(CheckpointPublished) + 2)
        assert not [e for e in events_in(tmp_path / "run") if "Too many open files" in getattr(e, "reason", "")]
        (tmp_path / "done").touch()
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stdout + stderr
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_strangers_are_closed_when_their_time_is_up(tmp_path: Path) -> None:
    with job(tmp_path) as run, flood(run.address, 100) as silent:
        limit = time.monotonic() + PATIENCE
        while silent.still_open():
            assert time.monotonic() < limit
            time.sleep(0.2)
        (tmp_path / "done").touch()
        run.process.communicate(timeout=PATIENCE)
    assert run.process.returncode == 0
