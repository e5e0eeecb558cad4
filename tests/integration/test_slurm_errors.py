"""What goes wrong with `--on slurm` before a job starts: one line each, on a real cluster, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines import texts
from support.launcher import PATIENCE, SHOAL, leftovers, shoal
from support.slurm_cluster import SlurmCluster, is_installed, slurm_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_installed(), reason="needs root, and the packages slurm-wlm and munge"),
]

ON = ("run", "--on", "slurm", "-n", "4", "script.py")
HELD = ("salloc", "--nodes=2", "--exclusive", "--no-kill", "--quiet")


@pytest.fixture(scope="module")
def made() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(made: SlurmCluster, tmp_path: Path) -> Iterator[SlurmCluster]:
    (tmp_path / "script.py").write_text("print(1)\n")
    yield made
    made.cancel_all()
    made.wait_until_idle()


def refused(cluster: SlurmCluster, folder: Path, *command: str, **variables: str) -> str:
    """The only line that a command says; it ends with 2, and leaves nothing."""
    with cluster.started(folder, *command, **variables) as launcher:
        stdout, stderr = launcher.communicate(timeout=2 * PATIENCE)
    assert launcher.returncode == 2, stdout + stderr
    assert leftovers(folder) == []
    assert not (folder / "runs").exists()
    lines = [line for line in stderr.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1, stderr
    return lines[0].removeprefix("shoal: error: ")


def test_without_slurms_programs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    outcome = shoal(tmp_path, "run", "--nodes", "2", *ON[1:], variables={"PATH": str(tmp_path)})
    assert outcome.code == 2
    assert outcome.stderr == f"shoal: error: {texts.no_slurm_program('srun')}\n"


def test_outside_of_an_allocation(cluster: SlurmCluster, tmp_path: Path) -> None:
    assert refused(cluster, tmp_path, *SHOAL, *ON) == texts.NO_ALLOCATION


def test_asking_for_nodes_inside_of_an_allocation(cluster: SlurmCluster, tmp_path: Path) -> None:
    said = refused(cluster, tmp_path, *HELD, *SHOAL, "run", "--nodes", "2", *ON[1:])
    job = said.partition("(job ")[2].partition(")")[0]
    assert said == texts.nodes_in_allocation("2", job)


def test_a_request_that_slurm_refuses_quotes_it(cluster: SlurmCluster, tmp_path: Path) -> None:
    asked = (*SHOAL, "run", "--nodes", "1", "--slurm", "partition=nowhere", *ON[1:])
    said = "salloc: error: Job submit/allocate failed: Invalid partition name specified"
    assert refused(cluster, tmp_path, *asked) == texts.allocation_refused(said)


def test_an_allocation_that_has_ended(cluster: SlurmCluster, tmp_path: Path) -> None:
    told = cluster.run(*HELD, "env").stdout.splitlines()
    variables = dict(line.split("=", 1) for line in told if line.startswith("SLURM_"))
    cluster.wait_until_idle()
    said = refused(cluster, tmp_path, *SHOAL, *ON, **variables)
    job = variables["SLURM_JOB_ID"]
    assert said.startswith(texts.allocation_over(job, f"srun: error: Slurm job {job} has expired")[:60]), said


def test_fewer_slots_than_workers(cluster: SlurmCluster, tmp_path: Path) -> None:
    few = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--quiet")
    assert refused(cluster, tmp_path, *few, *SHOAL, *ON) == texts.too_few_slots(4, 2, 2)


def test_a_node_that_has_gone_from_its_allocation(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    words = " ".join((*SHOAL, *ON))
    waits = "while ! sinfo -h -n node2 -o %T | grep -q down; do sleep 0.2; done"
    with slurm_cluster() as cluster:
        cluster.lose("node2")
        held = ("salloc", "--nodes=2", "--exclusive", "--no-kill", "--quiet", "sh", "-c", f"{waits}; exec {words}")
        with cluster.started(tmp_path, *held) as launcher:
            _, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 2, stderr
    wanted = texts.no_step("node2", "srun: error: Unable to create step for job")
    assert wanted in stderr, stderr
