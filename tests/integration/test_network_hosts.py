"""Hosts with several workers that cannot reach each other any more: one decision, and the largest whole set goes on.

Machine 0 has the coordinator, machines 1 to 3 are the hosts A, B and C. What is cut is the link between B and C; A, the
coordinator and everything inside a host is reached by all.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.events import GenerationFormed, WorkerDied, WorkerExpelled
from support.network import Network
from support.network_job import NetworkJob

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

A, B, C = 1, 2, 3  # machines
BOTH_WAYS = ((B, C), (C, B))
MANY_EPOCHS = 400  # nobody gets to the end before the test is over


@dataclass(frozen=True)
class Hosts:
    """Workers are numbered from host to host."""

    sizes: tuple[int, ...]  # workers on A, B and C

    @property
    def machines(self) -> tuple[int, ...]:
        return tuple(machine for machine, size in zip((A, B, C), self.sizes, strict=True) for _ in range(size))

    def on(self, *machines: int) -> set[int]:
        return {worker for worker, machine in enumerate(self.machines) if machine in machines}


def cut(network: Network, links: tuple[tuple[int, int], ...]) -> None:
    for here, there in links:
        network.cut(here, there)


def check_one_decision(job: NetworkJob, hosts: Hosts, staying: set[int]) -> None:
    """Those who stay train on; the generation that they are in is the one after that which the cut has broken."""
    job.wait_for(WorkerExpelled, count=len(hosts.machines) - len(staying))
    formed = job.wait_for(GenerationFormed, count=2)
    assert [set(each.workers) for each in formed] == [hosts.on(A, B, C), staying]
    for worker in staying:
        job.apply(worker, generation=formed[1].generation, steps=3)
    assert {each.worker for each in job.events(WorkerExpelled)} == hosts.on(A, B, C) - staying
    assert all("cannot reach each other" in each.reason for each in job.events(WorkerExpelled))
    assert not job.events(WorkerDied)
    assert len(job.events(GenerationFormed)) == len(formed)


@pytest.mark.parametrize(
    "links",
    [
        BOTH_WAYS,
        pytest.param(((B, C),), marks=pytest.mark.long),
        pytest.param(((C, B),), marks=pytest.mark.long),
    ],
    ids=["both ways", "from B to C", "from C to B"],
)
def test_a_cut_between_two_hosts_costs_one_decision(tmp_path: Path, links: tuple[tuple[int, int], ...]) -> None:
    hosts = Hosts((1, 2, 1))
    with Network(4) as network:
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **{"heartbeat-limit": 3})
        job.reach(0, 5)
        cut(network, links)
        check_one_decision(job, hosts, hosts.on(A, B))


@pytest.mark.long
@pytest.mark.parametrize("links", [BOTH_WAYS, ((B, C),)], ids=["both ways", "from B to C"])
def test_a_larger_job_goes_on_without_the_smaller_of_the_two_hosts(
    tmp_path: Path, links: tuple[tuple[int, int], ...]
) -> None:
    hosts = Hosts((1, 3, 4))
    with Network(4) as network:
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **{"heartbeat-limit": 5})
        job.reach(0, 5)
        cut(network, links)
        check_one_decision(job, hosts, hosts.on(A, C))


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["ring", "auto", "halving-doubling"])
def test_a_cut_costs_one_decision_where_most_workers_are_not_connected(
    tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers without a connection across the cut find out whom they cannot reach before it is decided who stays."""
    monkeypatch.setenv("FULL_UP_TO", "2")
    hosts = Hosts((1, 3, 4))
    with Network(4) as network:
        settings = {"heartbeat-limit": 5, "schedule": schedule}
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **settings)
        job.reach(0, 5)
        cut(network, BOTH_WAYS)
        check_one_decision(job, hosts, hosts.on(A, C))


@pytest.mark.long
@pytest.mark.parametrize("links", [BOTH_WAYS, ((B, C),)], ids=["both ways", "from B to C"])
def test_a_cut_that_is_there_from_the_start_costs_one_decision(
    tmp_path: Path, links: tuple[tuple[int, int], ...]
) -> None:
    hosts = Hosts((1, 2, 1))
    with Network(4) as network:
        cut(network, links)
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **{"heartbeat-limit": 3})
        check_one_decision(job, hosts, hosts.on(A, B))


@pytest.mark.long
def test_of_three_hosts_that_cannot_reach_each_other_the_largest_goes_on(tmp_path: Path) -> None:
    hosts = Hosts((1, 2, 1))
    with Network(4) as network:
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **{"heartbeat-limit": 3})
        job.reach(0, 5)
        cut(network, (*BOTH_WAYS, (A, B), (B, A), (A, C), (C, A)))
        check_one_decision(job, hosts, hosts.on(B))


@pytest.mark.long
def test_who_was_cut_off_is_not_let_in_before_it_reaches_the_members_again(tmp_path: Path) -> None:
    """While the cut lasts it costs nothing more; once it is mended, all are together again."""
    hosts = Hosts((1, 2, 1))
    with Network(4) as network:
        job = NetworkJob(network, tmp_path, hosts.machines, epochs=MANY_EPOCHS, **{"heartbeat-limit": 3})
        job.reach(0, 5)
        cut(network, BOTH_WAYS)
        check_one_decision(job, hosts, hosts.on(A, B))
        time.sleep(35.0)  # longer than whoever is left out is barred
        assert len(job.events(GenerationFormed)) == 2, "nobody was let in who cannot reach the others"
        for here, there in BOTH_WAYS:
            network.mend(here, there)
        formed = job.wait_for(GenerationFormed, count=3)
        assert set(formed[-1].workers) == hosts.on(A, B, C)
        for worker in hosts.on(A, B, C):
            job.apply(worker, generation=formed[-1].generation, steps=3)
