"""What every group promises, over other libraries that carry it, between real processes.

gloo is part of torch; MPI is in the `test` extra; NCCL takes part where every rank can have a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.carrier_process import CHECKS
from support.server_groups import wait_until

TESTS = Path(__file__).parents[1]
SIZE = 3
AVAILABLE = {
    "gloo": True,
    "mpi": importlib.util.find_spec("mpi4py") is not None,
    "nccl": torch.cuda.is_available() and torch.cuda.device_count() >= SIZE,
}
CARRIERS = [name for name, is_there in AVAILABLE.items() if is_there]


class Rank:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.carrier_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TESTS,
            text=True,
        )

    def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class Ranks:
    """Processes that form one generation after the other, over any carrier."""

    def __init__(self) -> None:
        self._ranks = [Rank() for _ in range(SIZE + len(CARRIERS))]  # the last ones are for later
        self._addresses = [rank.hear()["address"] for rank in self._ranks]
        self._gone: list[Rank] = []
        self._generation = 0
        self.working: str | None = None  # the carrier of a group that works

    def connect(self, carrier: str, *members: int) -> None:
        self._generation += 1
        for place, rank in enumerate(members):
            addresses = [self._addresses[member] for member in members]
            self._ranks[rank].order(connect=addresses, rank=place, generation=self._generation, carrier=carrier)
        assert self.hear(*members) == [{}] * len(members)

    def all(self, **order: Any) -> list[dict[str, Any]]:
        for rank in self._ranks[:SIZE]:
            rank.order(**order)
        return self.hear(*range(SIZE))

    def one(self, rank: int, **order: Any) -> dict[str, Any]:
        self._ranks[rank].order(**order)
        return self._ranks[rank].hear()

    def hear(self, *ranks: int) -> list[dict[str, Any]]:
        return [self._ranks[rank].hear() for rank in ranks]

    def kill(self, rank: int) -> None:
        os.kill(self._ranks[rank].process.pid, signal.SIGKILL)

    def replace(self, rank: int) -> None:
        """By one that was for later."""
        self._gone.append(self._ranks[rank])
        self._ranks[rank], self._addresses[rank] = self._ranks.pop(), self._addresses.pop()

    def end(self) -> list[int]:
        """Let all of them leave by themselves."""
        for rank in self._ranks:
            assert rank.process.stdin is not None
            rank.process.stdin.close()
        return [rank.process.wait(60) for rank in self._ranks]

    def clean_up(self) -> None:
        for rank in (*self._ranks, *self._gone):
            rank.process.kill()
            rank.process.wait()
            for pipe in (rank.process.stdin, rank.process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[Ranks]:
    shared_memory = set(Path("/dev/shm").iterdir())
    made = Ranks()
    try:
        yield made
        assert not any(made.end())
    finally:
        made.clean_up()
    # Tests that run beside these have entries there too, for a while.
    left = set(Path("/dev/shm").iterdir()) - shared_memory
    wait_until(lambda: not any(path.exists() for path in left), f"{sorted(map(str, left))} are still there")


@pytest.fixture(scope="module", params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ranks(processes: Ranks, carrier: str) -> Ranks:
    """A group that works."""
    if processes.working != carrier:
        processes.connect(carrier, *range(SIZE))
    processes.working = carrier
    return processes


@pytest.fixture
def doomed(ranks: Ranks) -> Ranks:
    """A group that will not outlive the test."""
    ranks.working = None
    return ranks


@pytest.mark.parametrize("check", CHECKS)
def test_every_rank_gets_what_torch_gives(ranks: Ranks, check: str) -> None:
    answers = ranks.all(check=check)
    assert answers == [{"result": answers[0].get("result")}] * SIZE


def test_an_abort_wakes_a_blocked_operation_and_peers_learn_who_left(doomed: Ranks) -> None:
    assert doomed.one(0, start="gradients") == {"done": False}
    assert doomed.one(1, start="gradients") == {"done": False}
    doomed.one(0, abort="worker 7 died")
    answer = doomed.one(0, wait=True)
    assert (answer["error"], answer["text"]) == ("Aborted", "worker 7 died")
    answer = doomed.one(1, wait=True)
    assert (answer["error"], answer["peer"]) == ("PeerLost", 0), answer


@pytest.mark.parametrize(
    ("usual", "odd", "quoted"),
    [
        ("gradients", "loss", "'loss'"),
        ("gradients", "eleven", "11 float32"),
        ("gradients", "doubles", "10 float64"),
        ("gradients", "maximum", "max of 10"),
        ("gradients", "weights", "broadcast 'gradients'"),
        ("parts 2 1 1", "parts 1 2 1", "4 bytes"),
    ],
    ids=["label", "elements", "dtype", "reduction", "kind", "shapes"],
)
def test_ranks_that_differ_learn_how(doomed: Ranks, usual: str, odd: str, quoted: str) -> None:
    for rank, name in enumerate((usual, odd, usual)):
        doomed.one(rank, start=name)
    answers = doomed.all(wait=True)
    assert all(answer["error"] in ("WorkersDisagree", "PeerLost") for answer in answers)
    assert any(answer["error"] == "WorkersDisagree" and quoted in answer["text"] for answer in answers), answers


def test_survivors_name_the_killed_process_and_form_the_next_generation(doomed: Ranks, carrier: str) -> None:
    assert doomed.all(repeat=True) == [{"running": True}] * SIZE
    doomed.kill(1)
    for answer in doomed.hear(0, 2):
        assert (answer["error"], answer["peer"]) == ("PeerLost", 1), answer
        assert "all-reduce 'again and again', operation " in answer["text"]
    doomed.connect(carrier, 0, 2)
    doomed.replace(1)
    doomed.connect(carrier, 2, 1, 0)  # a newcomer, and other ranks
    assert doomed.all(check="sums") == [{"result": None}] * SIZE
