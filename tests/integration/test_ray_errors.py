"""What goes wrong with `--on ray` before a job starts: one line each, on a real cluster, and nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines.ray import texts
from support.launcher import PATIENCE, leftovers, shoal, started
from support.ray_cluster import RayCluster, is_installed, ray_cluster

pytestmark = [pytest.mark.long, pytest.mark.skipif(not is_installed(), reason="needs the package ray")]

ON = ("run", "--on", "ray", "-n", "2")


@pytest.fixture(scope="module")
def made() -> Iterator[RayCluster]:
    with ray_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: RayCluster, tmp_path: Path) -> Iterator[RayCluster]:
    """With one CPU; after the test it is free."""
    (tmp_path / "script.py").write_text("print(1)\n")
    yield made
    limit = time.monotonic() + PATIENCE
    while made.free() != 1:
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert made.left == []


def test_a_cluster_without_room(cluster: RayCluster, tmp_path: Path) -> None:
    outcome = shoal(tmp_path, *ON, "--ray", "wait=2s", "script.py", variables=cluster.variables)
    assert outcome.code == 2
    expected = texts.no_ray_room("2 x 1 CPU", {"CPU": 1.0}, 1, 2.0)
    assert [line for line in outcome.stderr.splitlines() if not line.endswith(" ...")] == [f"shoal: error: {expected}"]
    assert not (tmp_path / "runs").exists()


def test_waiting_for_room_says_so_and_is_ended_by_ctrl_c(cluster: RayCluster, tmp_path: Path) -> None:
    with started(tmp_path, *ON, "script.py", variables=cluster.variables) as launcher:
        assert launcher.stderr is not None
        assert launcher.stderr.readline() == "shoal: starting 2 workers of script.py with --on ray ...\n"
        assert launcher.stderr.readline() == f"shoal: {texts.waiting_for_ray('2 x 1 CPU')} ...\n"
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130
    assert leftovers(tmp_path) == []


def test_more_than_a_node_has_names_all_that_was_asked_for(cluster: RayCluster, tmp_path: Path) -> None:
    wish = ("--ray", "gpus=1 memory=1G wait=1s")
    outcome = shoal(tmp_path, "run", "--on", "ray", *wish, "script.py", variables=cluster.variables)
    assert outcome.code == 2
    assert "asked for 1 x 1 CPU and 1 GPU and 1 GiB of memory, free are 1 CPU, 0 GPU, " in outcome.stderr


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    outcome = shoal(tmp_path, *ON, "script.py", variables={"RAY_ADDRESS": "127.0.0.1:9"})
    assert outcome.code == 2
    assert outcome.stderr == f"shoal: error: {texts.ray_unreachable('127.0.0.1:9', 'Connection refused')}\n"
