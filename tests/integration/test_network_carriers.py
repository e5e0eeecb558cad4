"""Tensors of GPUs between machines by another library: it is chosen and the record says why, and who dies in it is lost
alone. gloo stands in for NCCL, and a claim for each GPU: nothing here has two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.cli.records import show
from shoal.events import CarrierChosen, GenerationFormed, WorkerDied
from shoal.watch.record.run_record import read_record
from support.network import Network
from support.network_job import NetworkJob

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.mark.long
def test_a_worker_that_dies_inside_the_library_costs_a_regrouping_and_the_library_starts_again(tmp_path: Path) -> None:
    with Network(3) as network:
        job = NetworkJob(network, tmp_path, (1, 1, 2, 2), script="stand_in_nccl.py", epochs=2)
        assert {job.result(worker) for worker in range(3)} == {"exact"}
        assert job.exit_code(job.coordinator) == 0
    assert [event.worker for event in job.events(WorkerDied)] == [3]
    assert [len(event.workers) for event in job.events(GenerationFormed)] == [4, 3]
    chosen = job.events(CarrierChosen)
    assert [(event.generation, event.carrier, event.is_asked) for event in chosen] == [
        (1, "nccl", False),
        (2, "nccl", False),
    ]
    assert chosen[0].reason == "each of 4 ranks on 2 machines has its own GPU and NCCL 2.28.9"
    shown = "\n".join(show.lines(read_record(tmp_path / "run")))
    assert f"generation 2: tensors of GPUs go by NCCL: {chosen[1].reason}" in shown
