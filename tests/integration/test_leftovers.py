"""What a job leaves behind however its processes end: no process, no token's folder, nothing in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from shoal.events import JobEnded, StepsApplied
from support.launcher import (
    PATIENCE,
    STEPPING,
    command_of,
    events_in,
    leftovers,
    processes_in,
    shoal,
    started,
    wait_for_file,
    write_script,
)


def guardian_of(launcher: int) -> psutil.Process | None:
    children = psutil.Process(launcher).children()
    return next((child for child in children if any(word.endswith("guardian.py") for word in command_of(child))), None)


def killed_with_its_guardian(launcher: int) -> None:
    guardian = guardian_of(launcher)
    assert guardian is not None
    guardian.suspend()  # so that it cannot notice first
    os.kill(launcher, signal.SIGKILL)
    guardian.kill()


def wait_until_empty(folder: Path) -> None:
    limit = time.monotonic() + PATIENCE
    while there := processes_in(folder):
        assert time.monotonic() < limit, [command_of(process) for process in there]
        time.sleep(0.05)


def test_a_job_ends_when_launcher_and_guardian_are_killed_and_the_next_one_sweeps_its_token(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "entered", count=2)
        killed_with_its_guardian(process.pid)
        process.communicate(timeout=PATIENCE)
        wait_until_empty(tmp_path)
    [ended] = [event for event in events_in(tmp_path / "out") if isinstance(event, JobEnded)]
    assert (ended.outcome, ended.reason) == ("interrupted", "the launcher is gone")
    assert len(list((tmp_path / "runtime").iterdir())) == 1
    write_script(tmp_path, "pass")
    assert shoal(tmp_path, "run", "script.py").code == 0  # which leaves nothing in `runtime`


def test_a_coordinator_that_nobody_watches_yet_ends_with_its_launcher(tmp_path: Path) -> None:
    """The launcher is stopped before it can connect, and then killed."""
    write_script(tmp_path, "time.sleep(1000)")
    with started(tmp_path, "run", "--run-dir", "out", "script.py") as process:
        limit = time.monotonic() + PATIENCE
        while not (tmp_path / "out" / "decisions.sqlite").exists():  # the coordinator is up
            assert time.monotonic() < limit
        os.kill(process.pid, signal.SIGSTOP)
        killed_with_its_guardian(process.pid)
        process.communicate(timeout=PATIENCE)
        wait_until_empty(tmp_path)


LOADING = """
import multiprocessing, os, time
import torch
from torch.utils.data import DataLoader, Dataset
import shoal

class Numbers(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.tensor([float(index)])

def train(run):
    class Local(Numbers):
        pass

    model = run.model(torch.nn.Linear(1, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1e-9))
    loader = DataLoader(DATA(), batch_size=4, num_workers=2, multiprocessing_context="CONTEXT")
    for x in run.batches(loader):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    multiprocessing.current_process()._config["semprefix"] = "/PREFIX"
    shoal.main(train)
"""


class Shared:
    """Semaphores of one test; other processes of this machine have theirs in the same place."""

    def __init__(self, folder: Path, data: str, context: str) -> None:
        self._prefix = f"shoal-test-{secrets.token_hex(4)}"
        text = LOADING.replace("DATA", data).replace("CONTEXT", context).replace("PREFIX", self._prefix)
        (folder / "script.py").write_text(text)

    def left(self) -> list[str]:
        return [path.name for path in Path("/dev/shm").iterdir() if self._prefix in path.name]


@pytest.mark.long
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_loader_whose_processes_cannot_be_started_leaves_nothing_in_shared_memory(
    context: str, tmp_path: Path
) -> None:
    shared = Shared(tmp_path, "Local", context)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 5
    assert "Can't pickle local object" in outcome.stderr
    assert shared.left() == []


@pytest.mark.long
@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("how", ["worker", "launcher", "ctrl-c twice"])
def test_processes_that_load_leave_nothing_in_shared_memory_however_they_end(
    how: str, context: str, tmp_path: Path
) -> None:
    shared = Shared(tmp_path, "Numbers", context)
    with started(tmp_path, "run", "-n", "1", "--run-dir", "out", "--max-failures", "1", "script.py") as process:
        limit = time.monotonic() + PATIENCE
        while not (
            (tmp_path / "out").exists() and any(isinstance(e, StepsApplied) for e in events_in(tmp_path / "out"))
        ):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.1)
        assert bool(shared.left()) == (context != "fork"), "else this test shows nothing"
        if how == "worker":
            [worker] = [
                p
                for p in psutil.Process(process.pid).children()
                if command_of(p)[-1:] == ["script.py"] and "coordinator" not in command_of(p)
            ]
            worker.kill()
            time.sleep(1.0)  # the next one is started
        if how == "launcher":
            process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
                process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert leftovers(tmp_path) == []
    limit = time.monotonic() + PATIENCE
    while left := shared.left():
        assert time.monotonic() < limit, left
        time.sleep(0.1)
