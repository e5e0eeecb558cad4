"""Collectives of torch.distributed's backend `shoal` on tensors of a GPU that two processes share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.gpu_rank import CHECKS, SIZE

TESTS = Path(__file__).parents[1]
DYING = """
import os, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("shoal", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
tensor = torch.ones(50_000_000, device="cuda")
dist.all_reduce(tensor)
print("ready", flush=True)
try:
    while True:
        dist.all_reduce(tensor, async_op=True).wait()
except RuntimeError as error:
    print(error, flush=True)
torch.cuda.synchronize()
print(float(torch.ones(10, device="cuda").sum()), flush=True)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str | None]]:
    store = tmp_path_factory.mktemp("gpu") / "store"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "support.gpu_rank", str(rank), str(store)],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        said = [rank.communicate(timeout=400)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * SIZE
    finally:
        for rank in ranks:
            rank.kill()
    lines = [[json.loads(line) for line in text.splitlines()] for text in said]
    return [{line["check"]: line["error"] for line in own} for own in lines]


@pytest.mark.timeout(500)
@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_on_both_ranks(results: list[dict[str, str | None]], check: str) -> None:
    for rank in range(SIZE):
        assert results[rank][check] is None, results[rank][check]


def test_a_killed_peer_is_named_at_once(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DYING, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(SIZE)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        time.sleep(0.5)  # somewhere in the middle of an operation
        os.kill(ranks[1].pid, signal.SIGKILL)
        said, _ = ranks[0].communicate(timeout=30)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    error, alive = said.strip().splitlines()
    assert "rank 1" in error
    assert alive == "10.0"  # the survivor's GPU works on
