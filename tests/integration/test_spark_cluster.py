"""Whole jobs on a real standalone cluster of Spark: one that grows, and one whose launcher is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines import texts
from support.launcher import PATIENCE, events_in, leftovers, processes_in, started
from support.spark_cluster import (
    SOON,
    SparkCluster,
    is_installed,
    nodes_of,
    processes_below,
    spark_cluster,
    spark_variables,
    until_steps,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),  # several JVMs and torch start in each
    pytest.mark.skipif(not is_installed(), reason="needs Java and pyspark"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
COMMON = ("--threads", "1", "--run-dir", "run", "--progress", "plain", "script.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as made:
        yield made


@pytest.fixture
def variables(cluster: SparkCluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """With a script in the test's folder; after the test the cluster runs nothing."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    yield spark_variables(tmp_path)
    assert leftovers(tmp_path) == []
    _, alive = psutil.wait_procs(processes_below(cluster.folder), timeout=SOON)
    assert not alive


def job(cluster: SparkCluster, workers: str) -> tuple[str, ...]:
    return ("run", "--on", "spark", "--spark", f"master={cluster.address} executor.memory=512m", "-n", workers, *COMMON)


def test_a_job_grows_when_a_worker_joins_the_cluster(
    tmp_path: Path, variables: dict[str, str], cluster: SparkCluster
) -> None:
    with started(tmp_path, *job(cluster, "1:2"), "--pause", "0.1", variables=variables) as launcher:
        until_steps(tmp_path / "run", 0, launcher)
        assert list(nodes_of(events_in(tmp_path / "run")).values()) == ["executor-0"]
        with cluster.worker("second"):
            until_steps(tmp_path / "run", 1, launcher)
            stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 0, stderr
    assert "1,437 samples, each used exactly 5 times" in stdout
    assert texts.process_waits("worker 1", "all 1 slots of the only node are in use") in stdout
    assert nodes_of(events_in(tmp_path / "run")) == {0: "executor-0", 1: "executor-1"}


def test_executors_end_when_the_launcher_is_killed_and_the_cluster_takes_the_next_job(
    tmp_path: Path, variables: dict[str, str], cluster: SparkCluster
) -> None:
    with started(tmp_path, *job(cluster, "1"), "--pause", "0.1", variables=variables) as launcher:
        until_steps(tmp_path / "run", 0, launcher)
        running = [*processes_in(tmp_path), *processes_below(cluster.folder)]
        assert any("--executor-id" in process.cmdline() for process in running)
        launcher.kill()
        _, alive = psutil.wait_procs(running, timeout=SOON)
    assert not alive, [process.cmdline() for process in alive]
    shutil.rmtree(tmp_path / "run")
    with started(tmp_path, *job(cluster, "1"), "--epochs", "1", variables=variables) as launcher:
        stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 0, stderr
    assert "1,437 samples, each used exactly 1 times" in stdout
