"""Whole jobs over real links that are cut: machine 0 has the coordinator, every other one a worker that trains."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.events import AnyEvent, CheckpointPublished, GenerationFormed, Record, WorkerDied, WorkerExpelled
from support.network import PROGRAMS, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

WORKERS = 3
PATIENCE = 90.0  # seconds; only a hanging test ever waits so long


class NetworkJob:
    def __init__(self, network: Network, folder: Path, **settings: object) -> None:
        self._network = network
        self._run_dir = folder / "run"
        token = folder / "token"
        token.write_text("a token for tests")
        given = {"workers": WORKERS, "heartbeat-limit": 1.5, "lease": 3, "run-dir": self._run_dir} | settings
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        address = f"{network.host(0)}:7000"
        self._command = ("--address", address, "--token-file", token, *options, "train.py")
        self.coordinator = self._start_coordinator()
        self.workers = [
            network.start(
                1 + worker, PROGRAMS / "network_training.py", env=self._variables(address, token, worker), cwd=folder
            )
            for worker in range(WORKERS)
        ]

    def _start_coordinator(self) -> subprocess.Popen[str]:
        return self._network.start(0, "-m", "shoal", "coordinator", *self._command)

    def kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.wait(PATIENCE)

    def restart_coordinator(self) -> None:
        self.coordinator = self._start_coordinator()

    def _variables(self, address: str, token: Path, worker: int) -> dict[str, str]:
        ours = {
            "SHOAL_COORDINATOR": address,
            "SHOAL_TOKEN_FILE": str(token),
            "SHOAL_WORKER": str(worker),
            "SHOAL_LAUNCHER": str(os.getpid()),
        }
        return {**os.environ, **ours, "OMP_NUM_THREADS": "1"}

    def line(self, worker: int) -> str:
        pipe = self.workers[worker].stdout
        assert pipe is not None
        return pipe.readline().rstrip("\n")

    def reach(self, worker: int, step: int) -> None:
        """Wait until a worker has applied so many steps."""
        while not (line := self.line(worker)).startswith("step") or int(line.split()[1]) < step:
            assert line, f"worker {worker} ended"

    def result(self, worker: int) -> str:
        """The last words of a worker that finishes."""
        while (line := self.line(worker)).startswith("step"):
            pass
        return line

    def events(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        """Those of one kind so far."""
        lines = (self._run_dir / "events.jsonl").read_bytes().splitlines()
        found = (msgspec.json.decode(line, type=Record).event for line in lines)
        return [event for event in found if isinstance(event, kind)]

    def wait_for(self, kind: type[AnyEvent], count: int = 1) -> list[AnyEvent]:
        limit = time.monotonic() + PATIENCE
        while len(found := self.events(kind)) < count:
            assert time.monotonic() < limit, f"no {kind.__name__} came"
            time.sleep(0.05)
        return found

    def exit_code(self, process: subprocess.Popen[str]) -> int:
        return process.wait(PATIENCE)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(1 + WORKERS) as made:
        yield made


def test_two_workers_that_cannot_reach_each_other_are_parted_and_the_others_go_on(
    network: Network, tmp_path: Path
) -> None:
    job = NetworkJob(network, tmp_path)
    job.reach(0, 5)
    network.part(1, 2)  # the machines of workers 0 and 1
    (expelled,) = job.wait_for(WorkerExpelled)
    out = expelled.worker
    assert out in (0, 1)
    assert "cannot reach" in expelled.reason
    stayed = 1 - out
    assert job.result(stayed) == "exact"
    assert job.result(2) == "exact"
    assert job.exit_code(job.coordinator) == 0
    last = job.events(GenerationFormed)[-1]
    assert out not in last.workers


def test_a_worker_that_is_cut_off_from_the_coordinator_alone_trains_on(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, lease=30)
    job.reach(0, 5)
    network.part(0, 3)
    time.sleep(2.5)  # longer than the heartbeat limit
    network.rejoin(0, 3)
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert not job.events(WorkerExpelled)
    assert not job.events(WorkerDied)
    assert len(job.events(GenerationFormed)) == 1


def test_a_minority_publishes_nothing_while_the_others_go_on(network: Network, tmp_path: Path) -> None:
    """Worker 2's machine is cut off. Its own steps and parts count for nothing, and it comes back as a newcomer."""
    job = NetworkJob(network, tmp_path, **{"checkpoint-every": "4"})
    job.reach(0, 5)
    network.unplug(3)
    job.reach(0, 20)
    formed = job.events(GenerationFormed)[-1]
    assert 2 not in formed.workers
    network.plug_in_again(3)
    assert [job.result(worker) for worker in range(2)] == ["exact"] * 2
    assert job.exit_code(job.coordinator) == 0
    generations = [event.generation for event in job.events(GenerationFormed) if len(event.workers) >= 2]
    published = [event.checkpoint for event in job.events(CheckpointPublished)]
    assert published
    assert {int(name.rpartition("-g")[2]) for name in published} <= set(generations)


def test_of_two_groups_only_the_one_with_the_coordinator_goes_on(network: Network, tmp_path: Path) -> None:
    """Workers 1 and 2 are the larger part, and cut off: nothing that they do may count, and they finish nothing."""
    job = NetworkJob(network, tmp_path, **{"checkpoint-every": "4"})
    job.reach(0, 5)
    network.split(2, 3)
    assert job.result(0) == "exact"
    assert job.exit_code(job.coordinator) == 0
    assert job.events(GenerationFormed)[-1].workers == (0,)
    formed = {event.generation for event in job.events(GenerationFormed)}
    assert {int(event.checkpoint.rpartition("-g")[2]) for event in job.events(CheckpointPublished)} <= formed
    for worker in (1, 2):
        job.workers[worker].kill()
        assert "exact" not in job.workers[worker].communicate(timeout=PATIENCE)[0]


def test_a_killed_coordinator_that_is_started_again_finds_its_job_as_it_was(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, lease=30)
    job.reach(0, 5)
    job.kill_coordinator()
    job.reach(0, 15)  # nobody waits for it
    job.restart_coordinator()
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert len(job.events(GenerationFormed)) == 1


def test_a_worker_that_sleeps_is_put_out_and_comes_back_as_a_newcomer(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path)
    job.reach(0, 5)
    job.workers[2].send_signal(signal.SIGSTOP)
    (expelled,) = job.wait_for(WorkerExpelled)
    assert expelled.worker == 2
    job.workers[2].send_signal(signal.SIGCONT)
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert job.events(GenerationFormed)[-1].workers == (0, 1, 2)


def test_without_the_coordinator_workers_pause_after_the_lease_and_go_on_when_it_is_back(
    network: Network, tmp_path: Path
) -> None:
    job = NetworkJob(network, tmp_path, **{"lease": 1, "heartbeat-limit": 6})
    job.reach(0, 5)
    network.unplug(0)
    time.sleep(4.0)  # four times the lease, and less than what makes a coordinator without a launcher give up
    network.plug_in_again(0)
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
