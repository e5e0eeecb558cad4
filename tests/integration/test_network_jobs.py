"""Whole jobs over real links that are cut: machine 0 has the coordinator, every other one a worker that trains."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from shoal.checkpoint.manifest import MANIFEST, Manifest, decode_manifest, parse_name
from shoal.events import (
    AnyEvent,
    CheckpointPublished,
    CheckpointStarted,
    Event,
    GenerationFormed,
    JobEnded,
    StepsApplied,
    WorkerDied,
    WorkerExpelled,
    WorkerLeft,
)
from support.launcher import events_in
from support.network import PROGRAMS, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

WORKERS = 3
STEPS = 80  # of a whole job
PATIENCE = 90.0  # seconds; only a hanging test ever waits so long
Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True)
class Applied:
    """A step in a worker's own log."""

    at: float  # of the machine's monotonic clock
    generation: int
    step: int


class NetworkJob:
    def __init__(self, network: Network, folder: Path, **settings: object) -> None:
        self._network = network
        self._folder = folder
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

    def log(self, worker: int) -> list[Applied]:
        """The steps that a worker says it applied, whoever knows of them."""
        lines = (self._folder / f"steps-{worker}").read_text().splitlines(keepends=True)
        words = (line.split() for line in lines if line.endswith("\n"))
        return [Applied(float(at), int(generation), int(step)) for at, generation, step in words]

    def had(self, worker: int, step: int, generation: int) -> bool:
        """Whether a worker says that it had this state in this generation; it may have brought it from one before."""
        return any(applied.step == step and applied.generation <= generation for applied in self.log(worker))

    def manifests(self) -> list[Manifest]:
        """Of the checkpoints that are published and kept."""
        found = []
        for file in sorted((self._run_dir / "checkpoints").glob(f"*/{MANIFEST}")):
            with contextlib.suppress(FileNotFoundError):  # a newer one has taken its place by now
                found.append(decode_manifest(file.read_bytes(), checkpoint=file.parent.name))
        return found

    def record(self) -> list[AnyEvent]:
        return events_in(self._run_dir)

    def events(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind so far."""
        return [event for event in self.record() if isinstance(event, kind)]

    def wait_for(self, kind: type[Kind], count: int = 1) -> list[Kind]:
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


@pytest.mark.long
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


@pytest.mark.long
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


def check_the_record(job: NetworkJob, out: set[int]) -> None:
    """Nothing of these workers counts from when they are left out until they are let in again. Worker 0 stays."""
    members: set[int] = set()
    last_with = 0  # the last generation that they were in before
    was_cut = False
    for event in job.record():
        if isinstance(event, GenerationFormed):
            members = set(event.workers)
            was_cut = was_cut or (last_with > 0 and not members & out)
            last_with = last_with if was_cut else event.generation
        elif was_cut and isinstance(event, StepsApplied | WorkerLeft) and event.worker in out:
            assert event.worker in members
            assert isinstance(event, WorkerLeft) or event.generation > last_with
        elif was_cut and isinstance(event, CheckpointStarted | CheckpointPublished):
            state = parse_name(event.checkpoint)
            assert state is not None
            assert job.had(0, *state)
    assert was_cut


def check_manifests(job: NetworkJob, out: set[int], *, since: int) -> None:
    """From this generation on checkpoints are made without these workers, of states that worker 0 had."""
    manifests = job.manifests()
    assert any(manifest.about.generation.number >= since for manifest in manifests)
    for manifest in manifests:
        generation = manifest.about.generation
        assert len(manifest.files) == generation.size
        assert job.had(0, manifest.about.step, generation.number)
        assert generation.number < since or not {member.worker for member in generation.members} & out


def check_it_did_nothing_alone(job: NetworkJob, worker: int, *, cut: float) -> None:
    """By its own log, so far. It can finish the step that it was in when it was cut off, and no other."""
    alone = [applied for applied in job.log(worker) if applied.at > cut]
    assert len(alone) <= 1
    assert {applied.generation for applied in alone} <= {1}


def test_a_minority_publishes_nothing_while_the_others_go_on(network: Network, tmp_path: Path) -> None:
    """Worker 2's machine is cut off. Its own steps and parts count for nothing, and it comes back as a newcomer."""
    job = NetworkJob(network, tmp_path, **{"checkpoint-every": "4"})
    job.reach(0, 5)
    network.unplug(3)
    cut = time.monotonic()
    job.reach(0, 20)
    formed = job.events(GenerationFormed)[-1]
    assert 2 not in formed.workers
    job.wait_for(CheckpointPublished, count=1 + len(job.events(CheckpointPublished)))
    check_manifests(job, {2}, since=formed.generation)
    check_it_did_nothing_alone(job, 2, cut=cut)
    network.plug_in_again(3)
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    check_the_record(job, {2})


@pytest.mark.long
def test_of_two_groups_only_the_one_with_the_coordinator_goes_on(network: Network, tmp_path: Path) -> None:
    """Workers 1 and 2 are the larger part, and cut off: nothing that they do may count, and they finish nothing."""
    job = NetworkJob(network, tmp_path, **{"checkpoint-every": "4"})
    job.reach(0, 5)
    network.split(2, 3)
    cut = time.monotonic()
    assert job.result(0) == "exact"
    assert job.exit_code(job.coordinator) == 0
    last = job.events(GenerationFormed)[-1]
    assert last.workers == (0,)
    check_manifests(job, {1, 2}, since=last.generation)
    check_the_record(job, {1, 2})
    [ended] = job.events(JobEnded)
    assert ended.outcome == "finished"
    assert job.log(0)[-1].step == STEPS
    for worker in (1, 2):
        assert job.workers[worker].poll() is None, "it is there all the time, and has not finished"
        check_it_did_nothing_alone(job, worker, cut=cut)
        job.workers[worker].kill()
        assert "exact" not in job.workers[worker].communicate(timeout=PATIENCE)[0]


@pytest.mark.long
def test_a_killed_coordinator_that_is_started_again_finds_its_job_as_it_was(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, lease=30)
    job.reach(0, 5)
    job.kill_coordinator()
    job.reach(0, 15)  # nobody waits for it
    job.restart_coordinator()
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert len(job.events(GenerationFormed)) == 1


@pytest.mark.long
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


@pytest.mark.long
def test_without_the_coordinator_workers_pause_after_the_lease_and_go_on_when_it_is_back(
    network: Network, tmp_path: Path
) -> None:
    job = NetworkJob(network, tmp_path, **{"lease": 1, "heartbeat-limit": 6})
    job.reach(0, 5)
    network.unplug(0)
    time.sleep(3.0)  # three times the lease
    paused = [job.log(worker)[-1].step for worker in range(WORKERS)]
    assert max(paused) < STEPS
    time.sleep(1.0)  # in all less than what makes a coordinator without a launcher give up
    assert [job.log(worker)[-1].step for worker in range(WORKERS)] == paused, "no worker applies a step any more"
    network.plug_in_again(0)
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert [job.log(worker)[-1].step for worker in range(WORKERS)] == [STEPS] * WORKERS
