"""Jobs whose tensors another library moves: they lose a worker, go on, and every sample still counts once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from shoal.collectives import texts
from shoal.events import CarrierChosen
from support.launcher import events_in, leftovers, shoal

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
CARRIERS = ["gloo", *(["mpi"] if importlib.util.find_spec("mpi4py") is not None else [])]


@pytest.mark.long
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_job_survives_a_kill(tmp_path: Path, carrier: str) -> None:
    outcome = shoal(
        tmp_path,
        *("run", "-n", "3", "--carrier", carrier, "--chaos", "kill worker at step 20"),
        *(str(EXAMPLE), "--pause", "0.01"),
    )
    assert outcome.code == 0, outcome.stderr
    assert "each used exactly 5 times" in outcome.stdout
    assert "1 worker lost" in outcome.stdout
    (run_dir,) = (tmp_path / "runs").iterdir()
    chosen = [event for event in events_in(run_dir) if isinstance(event, CarrierChosen)]
    assert {(event.carrier, event.is_asked, event.reason) for event in chosen} == {
        (carrier, True, f"asked for with --carrier {carrier}")
    }
    assert len(chosen) >= 2, "one for each generation"
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_nccl_without_a_gpu_per_worker_is_one_line(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "run", "-n", "2", "--carrier", "nccl", str(EXAMPLE))
    assert outcome.code == 2, outcome.stderr
    assert texts.nccl_impossible("no rank has a GPU") in outcome.stderr
