"""Whole jobs in real executors of Spark: kills of workers, executors and the launcher."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.engines import texts as engine_texts
from shoal.engines.spark import texts as spark_texts
from shoal.events import ProcessPlaced, WorkerDied
from support import served_script
from support.launcher import PATIENCE, SHOAL, command_of, events_in, leftovers, processes_in, shoal
from support.spark_cluster import (
    SOON,
    cluster_properties,
    executors_of,
    is_installed,
    nodes_of,
    processes_below,
    spark_variables,
    until_steps,
)

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
    assert processes_below(tmp_path) == []


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
        _, alive = psutil.wait_procs(running, timeout=SOON)
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


def test_servers_are_in_different_executors_and_each_sample_counts_once(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    served_script.write(tmp_path, pause=0.02)
    served = ("--strategy", "parameter-server", "--servers", "2", "--chaos", "kill worker 1 at step 20")
    with started(tmp_path, variables, *SHOAL, "run", *ON_SPARK, "--run-dir", "run", *served, "script.py") as launcher:
        code, _, stderr = ended(launcher)
    assert code == 0, stderr
    served_script.assert_each_sample_once(served_script.result(tmp_path))
    events = events_in(tmp_path / "run")
    placed = {one.server: one.node for one in events if isinstance(one, ProcessPlaced) and one.server is not None}
    assert set(placed.values()) == {"executor-0", "executor-1"}
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]


def test_a_secret_of_spark_is_on_no_command_line_and_in_no_record(tmp_path: Path, variables: dict[str, str]) -> None:
    """Spark refuses to authenticate without a secret, so a job that trains shows that Spark has got it."""
    secret = "hunter2-of-spark"
    words = f"{cluster_properties(1)} authenticate=true authenticate.secret={secret}"
    (tmp_path / "job.toml").write_text(f'spark = "{words}"\n')
    options = ("--config", "job.toml", "-n", "1", "--run-dir", "run", "script.py", "--pause", "0.1")
    with started(tmp_path, variables, *SHOAL, "run", "--on", "spark", *options) as launcher:
        until_steps(tmp_path / "run", 0, launcher)
        running = [*psutil.Process(launcher.pid).children(recursive=True), *processes_below(tmp_path)]
        commands = [command_of(process) for process in running]
        assert any("org.apache.spark.deploy.SparkSubmit" in command for command in commands)
        assert not any(secret in word for command in commands for word in command)
        for process in processes_in(tmp_path):
            if "script.py" in command_of(process) and process.pid != launcher.pid:
                assert secret not in process.environ().values(), command_of(process)
        launcher.send_signal(signal.SIGINT)
        code, _, stderr = ended(launcher)
    assert code == 130, stderr
    held = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert held == []
    again = shoal(tmp_path, "run", "--resume", "run", variables=variables)
    assert again.code == 2, again
    assert spark_texts.spark_secrets_missing(["authenticate.secret"]) in again.stderr


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
