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
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.collective_process", str(rank), schedule],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TESTS,
            text=True,
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


def test_processes_get_the_same_bits_and_end_cleanly() -> None:
    with processes(3, "auto") as ranks:  # a tree for the small ones, a ring for the last
        for elements in (1, 1000, 1_000_003):
            for rank in ranks:
                rank.say(f"sum {elements}")
            answers = [rank.hear() for rank in ranks]
            assert answers[0] == answers[1] == answers[2]
        assert [rank.end() for rank in ranks] == [0, 0, 0]


@pytest.mark.parametrize(("schedule", "elements"), [("ring", 4_000_000), ("tree", 100)])
def test_every_survivor_names_the_process_that_was_killed(schedule: str, elements: int) -> None:
    with processes(3, schedule) as ranks:
        for rank in ranks:
            rank.say(f"until-failure {elements}")
        assert all(rank.hear() == {"running": True} for rank in ranks)
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        for survivor in (ranks[0], ranks[2]):
            answer = survivor.hear()
            assert (answer["error"], answer["peer"]) == ("PeerLost", 1), answer


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
