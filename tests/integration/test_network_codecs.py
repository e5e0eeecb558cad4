"""Whole jobs whose gradients a codec encodes between machines: machine 0 has the coordinator, two others the workers.

The codec is the example of the tests, offered as an installed package offers one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.events import Advised, GenerationFormed, JobEnded, ReplicaDiffered, WorkerDied
from support.network import Network
from support.network_job import NetworkJob
from support.offers import offer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

MACHINES = (1, 1, 2, 2)  # of the workers, by number: 0 and 2 lead theirs


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setenv("PYTHONPATH", offer(tmp_path / "site", "shoal.codecs", sparse="support.sparse_codec:Sparse"))
    with Network(3) as made:
        yield made


def test_sparse_gradients_between_machines_lose_nothing_that_is_sent(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, codec="sparse:above=0")
    assert [job.result(worker) for worker in range(4)] == ["exact"] * 4
    assert job.exit_code(job.coordinator) == 0
    (formed,) = job.events(GenerationFormed)
    assert formed.codec == "sparse:above=0"


def test_replicas_stay_equal_with_a_lossy_codec_when_a_leader_is_killed(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, **{"codec": "sparse:above=5", "digest-every": 5})
    job.reach(0, 10)
    job.workers[2].kill()
    counted = {job.result(worker) for worker in (0, 1, 3)}
    assert len(counted) == 1, counted
    assert "exact" not in counted, "the codec does leave something out"
    assert job.exit_code(job.coordinator) == 0
    assert [event.worker for event in job.events(WorkerDied)] == [2]
    assert not job.events(ReplicaDiffered)
    assert any("of worker 2 is lost with it" in event.text for event in job.events(Advised))
    assert [event.outcome for event in job.events(JobEnded)] == ["finished"]


def test_a_setting_that_the_codec_refuses_ends_the_job_with_its_words(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, codec="sparse:above=-1")
    assert job.exit_code(job.coordinator) != 0
    (ended,) = job.events(JobEnded)
    assert "settings of sparse are: above" in ended.reason
