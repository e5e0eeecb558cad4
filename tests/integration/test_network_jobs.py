"""Whole jobs over real links that are cut: machine 0 has the coordinator, every other one a worker that trains."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.checkpoint.published.manifest import parse_name
from shoal.events import (
    CheckpointPublished,
    CheckpointStarted,
    GenerationFormed,
    JobEnded,
    StepsApplied,
    WorkerDied,
    WorkerExpelled,
    WorkerLeft,
)
from support.network import Network
from support.network_job import PATIENCE, NetworkJob

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

WORKERS = 3
MACHINES = (1, 2, 3)  # of the workers, by number
STEPS = 80  # of a whole job


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(1 + WORKERS) as made:
        yield made


@pytest.mark.long
def test_two_workers_that_cannot_reach_each_other_are_parted_and_the_others_go_on(
    network: Network, tmp_path: Path
) -> None:
    job = NetworkJob(network, tmp_path, MACHINES)
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
    job = NetworkJob(network, tmp_path, MACHINES, lease=30)
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
    job = NetworkJob(network, tmp_path, MACHINES, **{"checkpoint-every": "4"})
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
    job = NetworkJob(network, tmp_path, MACHINES, **{"checkpoint-every": "4"})
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
    job = NetworkJob(network, tmp_path, MACHINES, lease=30)
    job.reach(0, 5)
    job.kill_coordinator()
    job.reach(0, 15)  # nobody waits for it
    job.restart_coordinator()
    assert [job.result(worker) for worker in range(WORKERS)] == ["exact"] * WORKERS
    assert job.exit_code(job.coordinator) == 0
    assert len(job.events(GenerationFormed)) == 1


@pytest.mark.long
def test_a_worker_that_sleeps_is_put_out_and_comes_back_as_a_newcomer(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES)
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
    job = NetworkJob(network, tmp_path, MACHINES, **{"lease": 1, "heartbeat-limit": 6})
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
