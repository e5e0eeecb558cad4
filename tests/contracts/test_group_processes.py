"""Groups between real processes: the same bits everywhere, and a killed one is named by all who are left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


class Rank:
    def __init__(self, rank: int, schedule: str) -> None:
        """`memory-python` is `memory` without the C extension."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.collective_process", str(rank), schedule.removesuffix("-python")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TESTS,
            text=True,
            env={**os.environ, "SHOAL_NATIVE": "0" if schedule.endswith("-python") else "1"},
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> int:
        self.process.communicate()
        return self.process.returncode


@contextmanager
def processes(size: int, schedule: str) -> Iterator[list[Rank]]:
    ranks = [Rank(rank, schedule) for rank in range(size)]
    try:
        addresses = [rank.hear()["address"] for rank in ranks]
        for rank in ranks:
            rank.say(json.dumps(addresses))
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.end()


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "schedule", [pytest.param("auto", marks=LONG), "memory", pytest.param("memory-python", marks=LONG)]
)
def test_processes_get_the_same_bits_and_end_cleanly(schedule: str) -> None:
    with processes(3, schedule) as ranks:  # small and large ones take different ways
        for elements in (1, 1000, 1_000_003):
            for rank in ranks:
                rank.say(f"sum {elements}")
            answers = [rank.hear() for rank in ranks]
            assert answers[0] == answers[1] == answers[2]
        assert [rank.end() for rank in ranks] == [0, 0, 0]


@pytest.mark.parametrize(
    ("schedule", "elements"),
    [
        ("ring", 4_000_000),
        pytest.param("tree", 100, marks=LONG),
        ("memory", 4_000_000),
        pytest.param("memory", 100, marks=LONG),
        pytest.param("memory-python", 4_000_000, marks=LONG),
    ],
)
def test_every_survivor_names_the_process_that_was_killed(schedule: str, elements: int) -> None:
    with processes(3, schedule) as ranks:
        for rank in ranks:
            rank.say(f"until-failure {elements}")
        assert all(rank.hear() == {"running": True} for rank in ranks)
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        for survivor in (ranks[0], ranks[2]):
            answer = survivor.hear()
            assert (answer["error"], answer["peer"]) == ("PeerLost", 1), answer
            assert "all-reduce 'again and again', operation " in answer["text"]
            if schedule.startswith("memory"):
                assert "rank 1 is process 1 of the test" in answer["text"]


@pytest.mark.parametrize("schedule", ["memory", pytest.param("memory-python", marks=LONG)])
def test_a_stopped_process_is_named_after_the_limit_and_leaves_others_alone_when_it_wakes_up(schedule: str) -> None:
    with processes(3, schedule) as ranks:
        for rank in ranks:
            rank.say("until-failure 4000000")
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
            rank.say("until-failure 100000")
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
