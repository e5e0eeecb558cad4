"""A generation's group over a mesh: what rank 0 reports of it. Threads stand for ranks, and claims for their GPUs."""

from __future__ import annotations

import itertools
import threading

import msgspec
import pytest
import torch

from shoal.codecs.identity import Identity
from shoal.collectives.gpu.carrier_choice import RankGpu
from shoal.events import AnyEvent, CarrierChosen, LinksMeasured, ScheduleChosen
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.strategies.peers import direct_group as module
from shoal.strategies.peers.direct_group import DirectGroupConfig, direct_group
from shoal.transport.mesh.faults import LinkFaults
from shoal.values import Address
from support.collectives import generation_of, meshes, succeed

SIZE = 2


def reports(monkeypatch: pytest.MonkeyPatch, *gpus: str) -> list[list[AnyEvent]]:
    """What each rank reports of a group of ranks that claim these GPUs, and that it works."""
    places = itertools.count()
    lock = threading.Lock()

    def own_facts(_device: torch.device | None) -> bytes:
        with lock:
            gpu = gpus[next(places)]
        return msgspec.msgpack.encode(RankGpu("a", gpu, "2.28.9"))

    monkeypatch.setattr(module, "own_facts", own_facts)
    told: list[list[AnyEvent]] = [[] for _ in range(SIZE)]
    generation = generation_of([Address("127.0.0.1", 1)] * SIZE)

    def check(rank: int) -> None:
        config = DirectGroupConfig(
            settings=AllReduceSettings(),
            stopped_limit=30.0,
            codec=Identity(),
            host="127.0.0.1",
            faults=LinkFaults(),
            report=told[rank].append,
            hold=lambda _team: None,
        )
        group = direct_group(ends[rank], generation, config)
        try:
            tensor = torch.ones(3)
            group.all_reduce(tensor, label="sum").wait()
            assert torch.equal(tensor, torch.full((3,), float(SIZE)))
        finally:
            group.close()

    with meshes("in-process", SIZE) as ends:
        succeed(*(lambda rank=rank: check(rank) for rank in range(SIZE)))
    return told


@pytest.mark.parametrize(
    ("gpus", "carrier", "reason"),
    [
        (("G1", "G2"), "nccl", "each of 2 ranks on one machine has its own GPU and NCCL 2.28.9"),
        (("G1", "G1"), "shoal", "ranks 0 and 1 on a share a GPU"),
    ],
)
def test_rank_0_reports_what_moves_tensors_of_gpus_and_why(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...], carrier: str, reason: str
) -> None:
    told = reports(monkeypatch, *gpus)
    assert [(each.carrier, each.reason) for each in told[0] if isinstance(each, CarrierChosen)] == [(carrier, reason)]
    assert told[1] == []


def test_a_rank_without_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (chosen,) = (each for each in reports(monkeypatch, "G1", "")[0] if isinstance(each, CarrierChosen))
    assert chosen.carrier == "shoal"
    assert chosen.reason in ("rank 0 on a has no GPU", "rank 1 on a has no GPU"), "whichever asked last"


def test_a_job_without_gpus_on_one_machine_says_nothing_of_carriers_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    told = reports(monkeypatch, "", "")[0]
    assert any(isinstance(each, ScheduleChosen) for each in told)
    assert not any(isinstance(each, CarrierChosen | LinksMeasured) for each in told)
