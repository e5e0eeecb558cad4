"""Decisions on disk: what was written is there for the next process, and what cannot be written waits."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.membership.core.decisions import (
    CheckpointDecided,
    Decision,
    EndDecided,
    FailureCounted,
    GenerationDecided,
    MemberLeft,
    NumberGiven,
    Remembered,
    StopDecided,
    add_up,
)
from shoal.membership.record.decision_file import FILE_NAME, DecisionFile
from shoal.values import Address, Generation, Member

GENERATION = Generation(
    number=3,
    members=(Member(rank=0, worker=5, host="here", process=7, address=Address("127.0.0.1", 7000)),),
    schedule="auto",
    codec="identity",
    reason="worker 1 died",
    holders=(5,),
)
EVERY: tuple[Decision, ...] = (
    NumberGiven(4),
    GenerationDecided(GENERATION),
    CheckpointDecided("step-00000010-g3", is_published=True),
    FailureCounted("ValueError: ü"),
    MemberLeft(5, is_handover=False),
    StopDecided("Ctrl-C", 130),
    EndDecided(130, "", "interrupted"),
)


def write(run_dir: Path, *decisions: Decision) -> None:
    file = DecisionFile(run_dir)
    for decision in decisions:
        file.add(decision)
    assert file.flush()
    file.close()


def read(run_dir: Path) -> Remembered:
    file = DecisionFile(run_dir)
    try:
        return file.read()
    finally:
        file.close()


def test_the_next_process_knows_every_decision(tmp_path: Path) -> None:
    assert read(tmp_path) == Remembered()
    write(tmp_path, *EVERY[:3])
    write(tmp_path, *EVERY[3:])
    assert read(tmp_path) == add_up(EVERY)
    assert read(tmp_path).generation == GENERATION


def test_nothing_that_was_not_flushed_is_there(tmp_path: Path) -> None:
    file = DecisionFile(tmp_path)
    file.add(EVERY[0])
    assert read(tmp_path) == Remembered()
    assert file.flush()
    assert read(tmp_path).highest_worker == 4
    file.close()


def test_a_file_that_cannot_be_written_is_waited_for(tmp_path: Path) -> None:
    """A full disk fails in the same way as a file that somebody else has locked."""
    write(tmp_path, NumberGiven(1))
    file = DecisionFile(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
        other.execute("BEGIN EXCLUSIVE")
        file.add(CheckpointDecided(checkpoint="step-00000002-g1", is_published=False))
        assert file.flush(), "workers should hear of a lost checkpoint although the disk is full"
        assert file.trouble is not None and not file.trouble.holds_up
        file.add(NumberGiven(2))
        assert not file.flush()
        assert file.trouble is not None and file.trouble.holds_up and "locked" in file.trouble.error
        file.add(NumberGiven(3))
        assert not file.flush()
        other.rollback()
    assert file.flush()
    assert file.trouble is None
    file.close()
    assert read(tmp_path).highest_worker == 3


def test_a_file_that_is_removed_is_not_begun_anew_without_what_was_in_it(tmp_path: Path) -> None:
    write(tmp_path, NumberGiven(1))
    file = DecisionFile(tmp_path)
    assert file.read().highest_worker == 1
    file.close()
    (tmp_path / FILE_NAME).unlink()
    file.add(NumberGiven(2))
    assert not file.flush()
    assert file.trouble is not None and "removed" in file.trouble.error
    assert not (tmp_path / FILE_NAME).exists()


def test_without_a_run_directory_nothing_is_kept_and_nothing_waits() -> None:
    file = DecisionFile(None)
    file.add(EVERY[0])
    assert file.flush()
    assert file.read() == Remembered()


@pytest.mark.parametrize("content", [b"", b"not a database, but quite long " * 100])
def test_a_file_that_holds_no_decisions_is_refused_or_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    if content:
        with pytest.raises(ShoalError, match="cannot be read"):
            read(tmp_path)
    else:
        assert read(tmp_path) == Remembered()


def test_a_decision_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    write(tmp_path, NumberGiven(1))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as other, other:
        other.execute("""INSERT INTO decisions (decision) VALUES ('{"type": "made-up"}')""")
    with pytest.raises(ShoalError, match="cannot be read"):
        read(tmp_path)


@given(st.lists(st.sampled_from(EVERY)))
def test_adding_up_goes_on_where_it_stopped(decisions: list[Decision]) -> None:
    """The order counts, how they came to be written does not."""
    known = add_up(decisions)
    assert known.highest_worker == (4 if EVERY[0] in decisions else -1)
    assert (known.end is not None) == (EVERY[6] in decisions)
    assert len(known.settled) == min(64, decisions.count(EVERY[2]))
