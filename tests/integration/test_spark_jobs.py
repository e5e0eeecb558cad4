"""Whole jobs in real executors of Spark: kills of workers, executors and the launcher, and data frames to train on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.engines import texts as engine_texts
from shoal.events import AnyEvent, StepsApplied, WorkerDied, WorkerEquipped
from support.launcher import PATIENCE, SHOAL, command_of, events_in, leftovers, processes_in, shoal
from support.spark_cluster import cluster_properties, executors_of, is_installed, spark_variables

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),  # several JVMs and torch start in each
    pytest.mark.skipif(not is_installed(), reason="needs Java and pyspark"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
ON_SPARK = ("--on", "spark", "--spark", cluster_properties(), "-n", "2", "--threads", "1")


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """With a script in the test's folder; after the test nothing of Spark runs."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    (tmp_path / "runtime").mkdir()
    yield {"XDG_RUNTIME_DIR": str(tmp_path / "runtime"), **spark_variables(tmp_path)}
    assert leftovers(tmp_path) == []
    assert executors_in(tmp_path) == []


def executors_in(folder: Path) -> list[psutil.Process]:
    """Executors, and whatever runs in their folders."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def started(folder: Path, variables: dict[str, str], *command: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs in `folder`, with its pipes as text. Killed if it still runs."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def ended(launcher: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    return launcher.returncode, stdout, stderr


def until_steps(run_dir: Path, worker: int, launcher: subprocess.Popen[str]) -> None:
    """Wait until a worker has taken steps."""
    limit = time.monotonic() + 3 * PATIENCE
    while not any(isinstance(one, StepsApplied) and one.worker == worker for one in events_in(run_dir)):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < limit, events_in(run_dir)
        time.sleep(0.1)


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


def tensors_in(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Of a run's checkpoint, by file and name."""
    parts = sorted((run_dir / "checkpoints").glob("*/*.safetensors"))
    assert parts
    return {(part.name, name): tensor for part in parts for name, tensor in load_file(part).items()}


def test_a_killed_executor_is_replaced_alone_and_nothing_is_left_of_a_killed_launcher(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    options = ("--run-dir", "run", "--min-workers", "2", "--progress", "plain", "script.py", "--pause", "0.05")
    with started(tmp_path, variables, *SHOAL, "run", *ON_SPARK, *options) as launcher:
        until_steps(tmp_path / "run", 0, launcher)
        executors_of(launcher.pid)["1"].kill()
        until_steps(tmp_path / "run", 2, launcher)  # the worker that replaces worker 1
        running = [*processes_in(tmp_path), *psutil.Process(launcher.pid).children(recursive=True)]
        assert sum("script.py" in command_of(one) for one in running) >= 3  # the launcher and two workers
        launcher.kill()
        _, alive = psutil.wait_procs(running, timeout=PATIENCE)
        _, stderr = launcher.communicate()
    assert not alive, [process.cmdline() for process in alive]
    assert not any("WARN" in line or "Stage" in line for line in stderr.splitlines()), stderr
    events = events_in(tmp_path / "run")
    nodes = nodes_of(events)
    assert {nodes[0], nodes[1]} == {"executor-0", "executor-1"}
    [died] = [event for event in events if isinstance(event, WorkerDied)]
    assert nodes[died.worker] == "executor-1"
    assert "its node executor-1 is gone" in died.reason
    assert nodes[2] == "executor-2"  # Spark's next one


def test_a_job_computes_the_same_bits_as_on_this_machine(tmp_path: Path, variables: dict[str, str]) -> None:
    """One worker in each executor."""
    exact = ("--deterministic", "--seed", "7", "--progress", "none", "script.py", "--epochs", "2")
    here = shoal(tmp_path, "run", "-n", "2", "--threads", "1", "--run-dir", "here", *exact, patience=2 * PATIENCE)
    assert here.code == 0, here
    with started(tmp_path, variables, *SHOAL, "run", *ON_SPARK, "--run-dir", "there", *exact) as launcher:
        code, _, stderr = ended(launcher)
    assert code == 0, stderr
    assert set(nodes_of(events_in(tmp_path / "there")).values()) == {"executor-0", "executor-1"}
    expected, found = tensors_in(tmp_path / "here"), tensors_in(tmp_path / "there")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_a_job_of_one_to_two_workers_starts_with_the_only_core(tmp_path: Path, variables: dict[str, str]) -> None:
    options = ("--threads", "1", "--run-dir", "run", "--progress", "plain", "script.py", "--epochs", "1")
    job = ("run", "--on", "spark", "--spark", "master=local[1]", "-n", "1:2", *options)
    with started(tmp_path, variables, *SHOAL, *job) as launcher:
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert "1,437 samples, each used exactly 1 times" in stdout
    assert engine_texts.process_waits("worker 1", "all 1 slots of the only node are in use") in stdout
    [node] = nodes_of(events_in(tmp_path / "run")).values()
    assert node.startswith("executor-driver-task-")
