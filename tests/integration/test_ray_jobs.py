"""Whole jobs on a real Ray cluster: growth, a lost node, a killed launcher, servers, reserved room, the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.events import AnyEvent, ProcessPlaced, StepsApplied, WorkerDied, WorkerEquipped
from support import served_script
from support.launcher import PATIENCE, command_of, events_in, leftovers, shoal, started, write_script
from support.ray_cluster import RayCluster, is_installed, ray_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_installed(), reason="needs the package ray"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
EXACT = "1,437 samples, each used exactly"
END_SECONDS = 15.0  # after which nothing is left of a launcher that was killed


@pytest.fixture(scope="module")
def made() -> Iterator[RayCluster]:
    with ray_cluster(1, 1) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: RayCluster, tmp_path: Path) -> Iterator[RayCluster]:
    """With a script in the test's folder; after the test nothing runs on any node, and all room is free."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    yield made
    until(lambda: not made.left)


def until(
    is_so: Callable[[], object], launcher: subprocess.Popen[str] | None = None, *, limit: float | None = None
) -> None:
    """`limit`: by time.monotonic."""
    limit = limit or time.monotonic() + 2 * PATIENCE
    while not is_so():
        assert launcher is None or launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < limit
        time.sleep(0.1)


def command(*options: str, workers: str = "2", run_dir: str = "run") -> tuple[str, ...]:
    return (
        "run",
        "--on",
        "ray",
        "-n",
        workers,
        "--run-dir",
        run_dir,
        "--threads",
        "1",
        "--progress",
        "plain",
        *options,
    )


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


def has_step(folder: Path, step: int) -> bool:
    return any(isinstance(one, StepsApplied) and one.step >= step for one in events_in(folder / "run"))


def placed_on(folder: Path) -> dict[int, str]:
    return {one.worker: one.node for one in events_in(folder / "run") if isinstance(one, ProcessPlaced)}


def tensors_in(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Of a run's checkpoint, by file and name."""
    parts = sorted((run_dir / "checkpoints").glob("*/*.safetensors"))
    assert parts
    return {(part.name, name): tensor for part in parts for name, tensor in load_file(part).items()}


def test_two_workers_on_two_nodes_compute_the_same_bits_as_here(tmp_path: Path, cluster: RayCluster) -> None:
    exact = ("--deterministic", "--seed", "7", "script.py")
    here = shoal(tmp_path, "run", "-n", "2", "--threads", "1", "--run-dir", "here", *exact, patience=3 * PATIENCE)
    assert here.code == 0, here
    there = shoal(tmp_path, *command(*exact), variables=cluster.variables, patience=3 * PATIENCE)
    assert there.code == 0, there
    assert sorted(nodes_of(events_in(tmp_path / "run")).values()) == sorted(cluster.nodes)
    expected, found = tensors_in(tmp_path / "here"), tensors_in(tmp_path / "run")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_nothing_is_left_in_the_cluster_when_the_launcher_is_killed(tmp_path: Path, cluster: RayCluster) -> None:
    with started(tmp_path, *command("script.py", "--pause", "0.1"), variables=cluster.variables) as launcher:
        until(lambda: has_step(tmp_path, 3), launcher)
        running = [one for one in cluster.processes() if "script.py" in " ".join(command_of(one))]
        assert len(running) == 2
        launcher.kill()
        launcher.wait()
    limit = time.monotonic() + END_SECONDS
    _, alive = psutil.wait_procs(running, timeout=END_SECONDS)
    assert not alive, [command_of(one) for one in alive]
    until(lambda: not cluster.left, limit=limit)
    until(lambda: cluster.free() == 2, limit=limit)
    assert leftovers(tmp_path) == []


def test_servers_are_on_different_nodes_and_each_sample_counts_once(tmp_path: Path, cluster: RayCluster) -> None:
    """They reserve nothing: two workers and two servers find room in two CPUs."""
    served_script.write(tmp_path, pause=0.02)
    served = ("--strategy", "parameter-server", "--servers", "2", "--chaos", "kill worker 1 at step 20")
    done = shoal(tmp_path, *command(*served, "script.py"), variables=cluster.variables, patience=4 * PATIENCE)
    assert done.code == 0, done
    served_script.assert_each_sample_once(served_script.result(tmp_path))
    events = events_in(tmp_path / "run")
    placed = {one.server: one.node for one in events if isinstance(one, ProcessPlaced) and one.server is not None}
    assert sorted(placed) == [0, 1]
    assert sorted(placed.values()) == sorted(cluster.nodes)
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]


WAITING = """
import os, time
import torch
with open("threads", "w") as file:
    print(torch.get_num_threads(), file=file)
report(1, loss=1.0)
while not os.path.exists("done"):
    time.sleep(0.05)
leave(1)
"""


def test_a_worker_has_the_cpus_that_were_asked_for_and_as_many_threads(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")  # the user's own number would travel
    write_script(tmp_path, WAITING, joins=True)
    until(lambda: cluster.free() == 2)  # one on each node
    node = cluster.add(2)
    try:
        options = ("run", "--on", "ray", "--ray", "cpus=2 memory=1M", "--run-dir", "run", "script.py")
        with started(tmp_path, *options, variables=cluster.variables) as launcher:
            until((tmp_path / "threads").exists, launcher)
            assert placed_on(tmp_path) == {0: node}, "no other node has two CPUs"
            until(lambda: cluster.free() == 2, launcher)
            (tmp_path / "done").touch()
            stdout, stderr = launcher.communicate(timeout=PATIENCE)
        assert launcher.returncode == 0, stdout + stderr
        assert (tmp_path / "threads").read_text() == "2\n"
        until(lambda: cluster.free() == 4)
    finally:
        cluster.kill(node)
        until(lambda: cluster.free() == 2)


def test_a_job_grows_into_a_new_node_which_also_replaces_a_lost_one(tmp_path: Path, cluster: RayCluster) -> None:
    options = command("script.py", "--epochs", "3", "--pause", "0.1", workers="2:3")
    with started(tmp_path, *options, variables=cluster.variables) as launcher:
        until(lambda: has_step(tmp_path, 5), launcher)
        new, lost = cluster.add(2), cluster.nodes[1]
        until(lambda: placed_on(tmp_path).get(2) == new, launcher)
        cluster.kill(lost)
        stdout, stderr = launcher.communicate(timeout=5 * PATIENCE)
    assert launcher.returncode == 0, stdout + stderr
    assert EXACT in stdout
    events = events_in(tmp_path / "run")
    assert nodes_of(events)[2] == new
    assert placed_on(tmp_path)[3] == f"{new}-2"
    died = [event for event in events if isinstance(event, WorkerDied)]
    assert [nodes_of(events)[event.worker] for event in died] == [lost]
    assert f"its node {lost} is gone" in died[0].reason
    assert leftovers(tmp_path) == []


def test_without_a_cluster_one_is_started_for_the_job_and_ends_with_it(tmp_path: Path) -> None:
    """A script without torch, on more workers than this machine has cores: the cluster has room for them."""
    workers = (os.cpu_count() or 1) + 1
    write_script(tmp_path, "report(1, loss=1.0)\nleave(1)\n", joins=True)
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # sockets have their paths in it
        here = {"RAY_ADDRESS": "", "RAY_TMPDIR": short}
        outcome = shoal(tmp_path, *command("script.py", workers=str(workers)), variables=here, patience=3 * PATIENCE)
        assert outcome.code == 0, outcome
        assert len(placed_on(tmp_path)) == workers
        until(lambda: not [one for one in psutil.process_iter() if short in " ".join(command_of(one))])
