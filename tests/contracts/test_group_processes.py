"""Groups between real processes: the same bits everywhere, and a killed one is named by all who are left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.collective_process import serve

TESTS = Path(__file__).parents[1]


class Rank:
    def __init__(self, rank: int, schedule: str) -> None:
        context = multiprocessing.get_context("fork")  # torch is there already
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(rank, schedule, theirs))
        self.process.start()
        theirs.close()

    def say(self, order: Any) -> None:
        self._pipe.send(order)

    def hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._pipe.recv()
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self._pipe.close()


@contextmanager
def processes(size: int, schedule: str) -> Iterator[list[Rank]]:
    ranks = [Rank(rank, schedule) for rank in range(size)]
    try:
        addresses = [rank.hear()["address"] for rank in ranks]
        for rank in ranks:
            rank.say(addresses)
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize("schedule", ["auto", "memory"])
def test_processes_get_the_same_bits_and_end_cleanly(schedule: str) -> None:
    with processes(3, schedule) as ranks:  # small and large ones take different ways
        for elements in (1, 1000, 1_000_003):
            for rank in ranks:
                rank.say(("sum", elements))
            answers = [rank.hear() for rank in ranks]
            assert answers[0] == answers[1] == answers[2]
        for rank in ranks:
            rank.say(None)
        for rank in ranks:
            rank.process.join()
        assert [rank.process.exitcode for rank in ranks] == [0, 0, 0]


@pytest.mark.parametrize(
    ("schedule", "elements"),
    [
        ("ring", 4_000_000),
        ("tree", 100),
        ("memory", 4_000_000),
        ("memory", 100),
    ],
)
def test_every_survivor_names_the_process_that_was_killed(schedule: str, elements: int) -> None:
    with processes(3, schedule) as ranks:
        for rank in ranks:
            rank.say(("until-failure", elements))
        assert all(rank.hear() == {"running": True} for rank in ranks)
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        for survivor in (ranks[0], ranks[2]):
            answer = survivor.hear()
            assert (answer["error"], answer["peer"]) == ("PeerLost", 1), answer
            assert "all-reduce 'again and again', operation " in answer["text"]
            if schedule == "memory":
                assert "rank 1 is process 1 of the test" in answer["text"]


@pytest.mark.long
def test_a_process_is_named_while_the_kernel_still_frees_its_memory() -> None:
    """That takes 0.2 s here. Its memory cannot be read any more, and nothing says that it has ended."""
    with processes(3, "memory") as ranks:
        ranks[1].say(("hold", 1 << 30))
        for rank in ranks:
            rank.say(("gather-until-failure", 4_000_000))
        assert all(rank.hear() == {"running": True} for rank in ranks)
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        answers = [survivor.hear() for survivor in (ranks[0], ranks[2])]
        assert [(answer["error"], answer["peer"]) for answer in answers] == [("PeerLost", 1)] * 2


def test_a_stopped_process_is_named_after_the_limit_and_leaves_others_alone_when_it_wakes_up() -> None:
    with processes(3, "memory") as ranks:
        for rank in ranks:
            rank.say(("until-failure", 4_000_000))
        assert all(rank.hear() == {"running": True} for rank in ranks)
        os.kill(ranks[1].process.pid, signal.SIGSTOP)
        answers = [survivor.hear() for survivor in (ranks[0], ranks[2])]
        assert [(answer["error"], answer["peer"]) for answer in answers] == [("PeerLost", 1)] * 2
        assert any("is stopped" in answer["text"] for answer in answers)
        os.kill(ranks[1].process.pid, signal.SIGCONT)
        assert ranks[1].hear()["error"] == "PeerLost"


def test_killing_every_process_leaves_no_shared_memory() -> None:
    with processes(3, "memory") as ranks:
        for rank in ranks:
            rank.say(("until-failure", 100_000))
        assert all(rank.hear() == {"running": True} for rank in ranks)
        found = [Path(f"/proc/{rank.process.pid}/maps").read_text().count("memfd:shoal") for rank in ranks]
        assert found == [3, 3, 3]  # it is anonymous memory, seen by all of them
        for rank in ranks:
            rank.process.kill()
    assert not list(Path("/dev/shm").glob("shoal*"))


def test_a_process_that_ends_in_the_middle_of_an_operation_ends_normally() -> None:
    script = """
import torch
from support.collectives import in_process_meshes
from shoal.codecs.identity import Identity
from shoal.collectives.threaded_group import ThreadedGroup
group = ThreadedGroup.over(in_process_meshes(2)[0], 1, "auto", Identity())
group.all_reduce(torch.ones(10), label="nobody comes")
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
