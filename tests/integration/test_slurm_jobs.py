"""Whole jobs on a real Slurm cluster: kills of workers, nodes and the launcher, cancelled and preempted allocations."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.engines import texts as engine_texts
from shoal.events import (
    AnyEvent,
    CheckpointPublished,
    JobStarted,
    ProcessPlaced,
    StepsApplied,
    WorkerDied,
    WorkerEquipped,
)
from support import served_script
from support.launcher import PATIENCE, SHOAL, events_in, leftovers, processes_in, shoal
from support.slurm_cluster import SlurmCluster, is_installed, slurm_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_installed(), reason="needs root, and the packages slurm-wlm and munge"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
EXACT = "1,437 samples, each used exactly"
SLOWLY = ("script.py", "--pause", "0.05")
ASKED = ("--nodes", "2", "--time", "30m")
CORES = os.sched_getaffinity(0)
SOON = 15.0  # seconds in which nothing of a killed launcher is left
BUSY = ("srun", "--nodes=2", "--exclusive", "sleep", "1000")  # both nodes
HELD = ("salloc", "--nodes=2", "--exclusive", "--no-kill", "--quiet")  # four slots on each node


@pytest.fixture(scope="module")
def made() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(made: SlurmCluster, tmp_path: Path) -> Iterator[SlurmCluster]:
    """With a script in the test's folder; after the test nothing runs on any node."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    yield made
    made.cancel_all()
    made.wait_until_idle()
    assert running_on(made) == []


def command(*options: str, workers: int | str = 4) -> tuple[str, ...]:
    job = ("run", "--on", "slurm", "-n", str(workers), "--run-dir", "run", "--threads", "1", "--progress", "plain")
    return (*SHOAL, *job, *options)


def running_on(cluster: SlurmCluster) -> list[psutil.Process]:
    return [process for node in cluster.nodes for process in cluster.processes(node)]


def workers_on(cluster: SlurmCluster, node: str) -> list[psutil.Process]:
    return [process for process in cluster.processes(node) if "script.py" in " ".join(process.cmdline())]


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


def placed_on(events: list[AnyEvent]) -> dict[int, str]:
    """By worker: the node where it was started."""
    return {event.worker: event.node for event in events if isinstance(event, ProcessPlaced)}


def until_step(folder: Path, step: int, launcher: subprocess.Popen[str] | None = None) -> None:
    limit = time.monotonic() + 2 * PATIENCE
    while not any(isinstance(one, StepsApplied) and one.step >= step for one in events_in(folder / "run")):
        assert launcher is None or launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < limit, events_in(folder / "run")
        time.sleep(0.1)


def assert_ends(processes: list[psutil.Process], seconds: float = PATIENCE) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive, [process.cmdline() for process in alive]


def tensors_in(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Of a run's checkpoint, by file and name."""
    parts = sorted((run_dir / "checkpoints").glob("*/*.safetensors"))
    assert parts
    return {(part.name, name): tensor for part in parts for name, tensor in load_file(part).items()}


def ended(launcher: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    return launcher.returncode, stdout, stderr


def test_a_job_asks_for_two_nodes_and_a_killed_worker_is_replaced(tmp_path: Path, cluster: SlurmCluster) -> None:
    options = ("--chaos", "kill worker 1 at step 20", "script.py", "--pause", "0.02")
    with cluster.started(tmp_path, *command(*ASKED, *options)) as launcher:
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert EXACT in stdout
    events = events_in(tmp_path / "run")
    nodes = nodes_of(events)
    assert sorted(nodes[worker] for worker in range(4)) == ["node1", "node1", "node2", "node2"]
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
    assert placed_on(events)[4] == nodes[1]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("given", [("node1", "node2"), ("node1",)], ids=["both are free", "one is free"])
def test_a_job_that_asks_for_one_or_two_nodes_takes_what_is_free(
    tmp_path: Path, cluster: SlurmCluster, given: tuple[str, ...]
) -> None:
    with contextlib.ExitStack() as stack:
        if len(given) == 1:
            stack.enter_context(cluster.started(tmp_path, "srun", "--nodelist=node2", "--exclusive", "sleep", "1000"))
            stack.callback(cluster.cancel_all)
            cluster.wait_for_jobs("RUNNING")
        asked = ("--nodes", "1:2", "--time", "30m", "script.py", "--epochs", "1")
        launcher = stack.enter_context(cluster.started(tmp_path, *command(*asked, workers=2)))
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert EXACT in stdout
    assert set(nodes_of(events_in(tmp_path / "run")).values()) == set(given)


def test_an_allocation_with_room_for_the_fewest_workers_is_enough(tmp_path: Path, cluster: SlurmCluster) -> None:
    few = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--quiet")
    with cluster.started(tmp_path, *few, *command("script.py", "--epochs", "1", workers="2:4")) as launcher:
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert EXACT in stdout
    assert sorted(nodes_of(events_in(tmp_path / "run")).values()) == ["node1", "node2"]
    assert engine_texts.process_waits("worker 2", "all 2 slots of 2 nodes are in use") in stdout


def test_servers_are_on_different_nodes_and_each_sample_counts_once(tmp_path: Path, cluster: SlurmCluster) -> None:
    served_script.write(tmp_path, pause=0.02)
    served = ("--strategy", "parameter-server", "--servers", "2", "--chaos", "kill worker 1 at step 20")
    with cluster.started(tmp_path, *command(*ASKED, *served, "script.py", workers=2)) as launcher:
        code, _, stderr = ended(launcher)
    assert code == 0, stderr
    served_script.assert_each_sample_once(served_script.result(tmp_path))
    events = events_in(tmp_path / "run")
    placed = {one.server: one.node for one in events if isinstance(one, ProcessPlaced) and one.server is not None}
    assert placed == {0: "node1", 1: "node2"}
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_workers_share_the_cores_of_a_node_where_slurm_binds_tasks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nprint('cores', len(os.sched_getaffinity(0)))\n")
    with slurm_cluster(1, cores=2, binds=True) as cluster:
        bound = cluster.run("srun", "--ntasks=1", "nproc")
        assert bound.stdout == "1\n", bound.stderr
        with cluster.started(tmp_path, *command("--nodes", "1", "script.py", workers=2)) as launcher:
            code, stdout, stderr = ended(launcher)
        cluster.wait_until_idle()
    assert code == 0, stdout + stderr
    assert stdout.count(f"cores {len(CORES)}") == 2, stdout


def test_free_slots_of_another_node_take_over_from_a_node_that_is_lost(tmp_path: Path) -> None:
    """The files of the lost node's agent stay: in truth they are on that machine's disk."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    with slurm_cluster() as cluster:
        with cluster.started(tmp_path, *HELD, *command(*SLOWLY)) as launcher:
            until_step(tmp_path, 10, launcher)
            cluster.lose("node2")
            code, stdout, stderr = ended(launcher)
        assert code == 0, stderr
        assert EXACT in stdout
        events = events_in(tmp_path / "run")
        assert {placed_on(events)[worker] for worker in (4, 5)} == {"node1"}
        assert any("its node node2 is gone" in event.reason for event in events if isinstance(event, WorkerDied))
        assert cluster.processes("node1") == []
        assert processes_in(tmp_path) == []


def test_an_agent_that_is_killed_comes_back_and_takes_workers_again(tmp_path: Path, cluster: SlurmCluster) -> None:
    options = (*ASKED, "--min-workers", "2", *SLOWLY)
    with cluster.started(tmp_path, *command(*options)) as launcher:
        until_step(tmp_path, 3, launcher)
        [agent] = [one for one in cluster.processes("node2") if "shoal.engines.nodes.agent" in one.cmdline()]
        agent.kill()
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert EXACT in stdout
    nodes = placed_on(events_in(tmp_path / "run"))
    assert [nodes[worker] for worker in sorted(nodes)[4:6]] == ["node2", "node2"], stderr


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path, cluster: SlurmCluster) -> None:
    with cluster.started(tmp_path, *command(*ASKED, *SLOWLY)) as launcher:
        until_step(tmp_path, 3, launcher)
        running = running_on(cluster)
        assert sum("script.py" in " ".join(one.cmdline()) for one in running) == 4
        launcher.kill()
        launcher.wait()
        assert_ends(running, SOON)
    cluster.wait_until_idle()  # the allocation has ended with its launcher
    limit = time.monotonic() + PATIENCE
    while leftovers(tmp_path):  # salloc ends a moment after its allocation
        assert time.monotonic() < limit, leftovers(tmp_path)
        time.sleep(0.1)


def test_ctrl_c_saves_and_the_job_can_be_resumed_in_another_allocation(tmp_path: Path, cluster: SlurmCluster) -> None:
    with cluster.started(tmp_path, *command(*ASKED, *SLOWLY)) as launcher:
        until_step(tmp_path, 3, launcher)
        launcher.send_signal(signal.SIGINT)
        code, _, stderr = ended(launcher)
    assert code == 130, stderr
    cluster.wait_until_idle()
    assert leftovers(tmp_path) == []
    assert any(isinstance(event, CheckpointPublished) for event in events_in(tmp_path / "run"))
    with cluster.started(tmp_path, *HELD, *SHOAL, "run", "--resume", "run", "--progress", "plain") as launcher:
        code, stdout, stderr = ended(launcher)
    assert code == 0, stderr
    assert EXACT in stdout


def test_a_request_that_waits_says_so_and_is_taken_back_by_ctrl_c(tmp_path: Path, cluster: SlurmCluster) -> None:
    with (
        cluster.started(tmp_path, *BUSY),
        cluster.started(tmp_path, *command(*ASKED, *SLOWLY)) as launcher,
    ):
        assert launcher.stderr is not None
        assert launcher.stderr.readline().startswith("shoal: starting ")
        assert launcher.stderr.readline() == "shoal: waiting for Slurm to give 2 nodes ...\n"
        assert sorted(job.split()[1] for job in cluster.jobs()) == ["PENDING", "RUNNING"]
        launcher.send_signal(signal.SIGINT)
        assert ended(launcher)[0] == 130
        assert [job.split()[1] for job in cluster.jobs()] == ["RUNNING"]
        cluster.cancel_all()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_request_that_waits_ends_with_its_launcher(tmp_path: Path, cluster: SlurmCluster, way: str) -> None:
    with (
        cluster.started(tmp_path, *BUSY),
        cluster.started(tmp_path, *command(*ASKED, *SLOWLY)) as launcher,
    ):
        assert launcher.stderr is not None
        assert launcher.stderr.readline().startswith("shoal: starting ")
        assert launcher.stderr.readline()
        launcher.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
        launcher.wait(PATIENCE)
        limit = time.monotonic() + PATIENCE
        while len(cluster.jobs()) > 1:
            assert time.monotonic() < limit, cluster.jobs()
            time.sleep(0.1)
        cluster.cancel_all()


@pytest.mark.parametrize("where", ["asked", "held"])
def test_scancel_makes_the_job_save_and_leaves_nothing(tmp_path: Path, cluster: SlurmCluster, where: str) -> None:
    job = (*HELD, *command(*SLOWLY)) if where == "held" else command(*ASKED, *SLOWLY)
    with cluster.started(tmp_path, *job) as launcher:
        until_step(tmp_path, 3, launcher)
        running = running_on(cluster)
        cluster.run("scancel", cluster.jobs()[0].split()[0])
        code, stdout, stderr = ended(launcher)
    assert code == 143, stderr
    assert where == "held" or "got SIGTERM: the nodes are taken away soon" in stdout + stderr
    assert f"--resume {tmp_path / 'run'}" in stderr
    assert_ends(running)
    assert leftovers(tmp_path) == []
    assert any(isinstance(event, CheckpointPublished) for event in events_in(tmp_path / "run"))


@pytest.mark.timeout(400)
def test_a_job_that_is_preempted_saves_and_goes_on_when_slurm_starts_it_again(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    """Another job of a partition that goes before takes the nodes; Slurm puts the first one back into its queue."""
    words = " ".join(command(*SLOWLY))
    (tmp_path / "batch.sh").write_text(f"#!/bin/sh\n{words}\n")
    (tmp_path / "runtime").mkdir()
    options = ("--nodes=2", "--exclusive", "--requeue", f"--chdir={tmp_path}", f"--output={tmp_path / 'output'}")
    submitted = cluster.run("sbatch", *options, "--open-mode=append", tmp_path / "batch.sh")
    assert submitted.returncode == 0, submitted.stderr
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.cancel_all)
        until_step(tmp_path, 5)
        urgent = cluster.run("srun", "--nodes=2", "--exclusive", "--partition=urgent", "true", patience=2 * PATIENCE)
        assert urgent.returncode == 0, urgent.stderr
        limit = time.monotonic() + 5 * PATIENCE
        while EXACT not in (output := (tmp_path / "output").read_text()):
            assert time.monotonic() < limit, output
            time.sleep(1.0)
            # Slurm would let a requeued job wait for two minutes. While the first one ends, this is refused.
            cluster.run("scontrol", "update", f"JobId={submitted.stdout.split()[-1]}", "StartTime=now")
        cluster.wait_until_idle()
    events = events_in(tmp_path / "run")
    assert len([event for event in events if isinstance(event, JobStarted)]) == 2, output
    assert not any(isinstance(event, WorkerDied) for event in events)


def test_a_job_computes_the_same_bits_as_on_this_machine(tmp_path: Path, cluster: SlurmCluster) -> None:
    """Two workers on each of two machines, which share no memory: sums are made in the order of the ranks even so."""
    exact = ("--threads", "1", "--deterministic", "--seed", "7", "--progress", "none", "script.py")
    here = shoal(tmp_path, "run", "-n", "4", "--run-dir", "here", *exact, patience=2 * PATIENCE)
    assert here.code == 0, here
    there = (*SHOAL, "run", "--on", "slurm", *ASKED, "-n", "4", "--run-dir", "there", *exact)
    with cluster.started(tmp_path, *there) as launcher:
        code, _, stderr = ended(launcher)
    assert code == 0, stderr
    assert sorted(nodes_of(events_in(tmp_path / "there")).values()) == ["node1", "node1", "node2", "node2"]
    expected, found = tensors_in(tmp_path / "here"), tensors_in(tmp_path / "there")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_a_job_whose_time_is_over_saves_before_slurm_kills_it(tmp_path: Path, cluster: SlurmCluster) -> None:
    """At the limit Slurm sends SIGTERM to everything, some of it several times, and SIGKILL a while later."""
    timed = (*HELD, "--time=1", "--kill-command=TERM")
    with cluster.started(tmp_path, *timed, *command("script.py", "--pause", "2")) as launcher:
        until_step(tmp_path, 3, launcher)
        code, _, stderr = ended(launcher)
    assert code == 143, stderr
    assert "--resume" in stderr.splitlines()[-1], stderr
    assert any(isinstance(event, CheckpointPublished) for event in events_in(tmp_path / "run"))
    assert leftovers(tmp_path) == []
