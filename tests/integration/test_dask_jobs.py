"""Whole jobs on a real Dask cluster: its workers are killed and new ones come; a killed launcher."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.events import AnyEvent, ProcessPlaced, StepsApplied, WorkerDied, WorkerEquipped
from support import served_script
from support.dask_cluster import DaskCluster, dask_cluster
from support.launcher import PATIENCE, command_of, events_in, leftovers, processes_in, shoal, started

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
EXACT = "1,437 samples, each used exactly"
END_SECONDS = 15.0  # after which nothing is left of a launcher that was killed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as made:
        yield made


def command(*options: str, workers: str = "2", run: str = "run") -> tuple[str, ...]:
    return ("run", "--on", "dask", "-n", workers, "--run-dir", run, "--threads", "1", "--progress", "plain", *options)


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


def until(is_there: Callable[[list[AnyEvent]], bool], folder: Path, launcher: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 2 * PATIENCE
    while not is_there(events := events_in(folder / "run")):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < limit, events
        time.sleep(0.1)


def deaths(events: list[AnyEvent]) -> list[str]:
    return [event.reason for event in events if isinstance(event, WorkerDied)]


def tensors_in(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Of a run's checkpoint, by file and name."""
    parts = sorted((run_dir / "checkpoints").glob("*/*.safetensors"))
    assert parts
    return {(part.name, name): tensor for part in parts for name, tensor in load_file(part).items()}


@pytest.mark.timeout(400)
def test_workers_of_dask_come_die_and_leave_while_a_job_runs(tmp_path: Path) -> None:
    """It begins on one and grows with the next; that one is killed, and its nanny starts it again; one is stopped."""
    text = EXAMPLE.read_text().replace("sleep(arguments.pause)", "sleep(0 if Path('fast').exists() else 0.3)")
    (tmp_path / "script.py").write_text(text.replace("import time\n", "import time\nfrom pathlib import Path\n"))
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask", workers=1) as cluster:
        (first,) = cluster.workers()
        with started(tmp_path, *command("script.py", workers="1:2"), variables=cluster.variables) as launcher:
            until(lambda events: 0 in nodes_of(events), tmp_path, launcher)
            both = cluster.scale(2)
            (second,) = both.keys() - {first}
            until(lambda events: 1 in nodes_of(events), tmp_path, launcher)
            os.kill(both[second], signal.SIGKILL)
            until(lambda events: 2 in nodes_of(events), tmp_path, launcher)
            cluster.scale(1)
            until(lambda events: len(deaths(events)) == 2, tmp_path, launcher)
            (tmp_path / "fast").touch()
            stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
        assert launcher.returncode == 0, stderr
        assert leftovers(tmp_path) == []
    assert EXACT in stdout
    events = events_in(tmp_path / "run")
    nodes = nodes_of(events)
    assert (nodes[0], nodes[1], nodes[2]) == (first, second, second)
    assert all("its node" in reason for reason in deaths(events)), deaths(events)


def test_the_same_bits_as_on_this_machine(tmp_path: Path, cluster: DaskCluster) -> None:
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    same = ("--deterministic", "--seed", "7", "--checkpoint-every", "end", "script.py", "--epochs", "1")
    there = shoal(tmp_path, *command(*same), variables=cluster.variables, patience=3 * PATIENCE)
    assert there.code == 0, there
    here = ("run", "-n", "2", "--run-dir", "here", "--threads", "1", "--progress", "plain", *same)
    assert shoal(tmp_path, *here, patience=3 * PATIENCE).code == 0
    found, expected = tensors_in(tmp_path / "run"), tensors_in(tmp_path / "here")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_nothing_of_a_killed_launcher_is_left_and_the_cluster_is_free(tmp_path: Path, cluster: DaskCluster) -> None:
    """The example ends well a moment later: Dask's workers have their threads again."""
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    with started(tmp_path, *command("script.py", "--pause", "0.05"), variables=cluster.variables) as launcher:
        until(lambda events: any(isinstance(one, StepsApplied) for one in events), tmp_path, launcher)
        running = [one for one in processes_in(tmp_path) if one.pid != launcher.pid]
        assert len([one for one in running if "script.py" in " ".join(command_of(one))]) >= 2
        launcher.kill()
        launcher.wait()
        _, alive = psutil.wait_procs(running, timeout=END_SECONDS)
        assert not alive, [command_of(one) for one in alive]
    assert leftovers(tmp_path) == []
    again = command("script.py", "--epochs", "1", run="again")
    outcome = shoal(tmp_path, *again, variables=cluster.variables, patience=2 * PATIENCE)
    assert outcome.code == 0, outcome


def test_servers_are_on_different_workers_of_dask_and_each_sample_counts_once(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    served_script.write(tmp_path, pause=0.02)
    served = ("--strategy", "parameter-server", "--servers", "2", "--chaos", "kill worker 1 at step 20")
    done = shoal(tmp_path, *command(*served, "script.py"), variables=cluster.variables, patience=4 * PATIENCE)
    assert done.code == 0, done
    served_script.assert_each_sample_once(served_script.result(tmp_path))
    events = events_in(tmp_path / "run")
    placed = {one.server: one.node for one in events if isinstance(one, ProcessPlaced) and one.server is not None}
    assert sorted(placed) == [0, 1]
    assert set(placed.values()) == cluster.workers().keys()
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
