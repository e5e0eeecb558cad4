"""Every way to train in torch runs over the backend `shoal`, unchanged, and computes what one process computes."""

from __future__ import annotations

import pytest

from support.torch_ranks import run_ranks

QUICK = ("ddp",)
MORE = ("fsdp", "pipeline", "ddp_hooks", "ddp_uneven", "hsdp", "tensor_parallel", "dtensors", "saving")


@pytest.mark.parametrize("way", [*QUICK, *(pytest.param(way, marks=pytest.mark.long) for way in MORE)])
def test_trains_as_one_process_would(way: str) -> None:
    run_ranks("support.torch_models:run", 4, way)
