"""What is read from salloc, which may be a program of the cluster's own that prints lines of its own."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from shoal.engines import texts
from shoal.engines.slurm.allocation import Wish
from shoal.engines.slurm.held_allocation import HeldAllocation
from shoal.errors import UsageError

PATIENCE = 30.0  # seconds
WISH = Wish(fewest=1, most=1, workers=1, threads=0, seconds=0, time="")
GIVES = 'while [ "${1#--}" != "$1" ]; do shift; done\nSLURM_JOB_ID=7 SLURM_JOB_NODELIST=node1 exec "$@"'


def a_salloc(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "salloc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_lines_of_other_programs_are_no_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_salloc(tmp_path, monkeypatch, f"echo Welcome to the cluster\n{GIVES}")
    with contextlib.closing(HeldAllocation(WISH)) as held:
        told = held.wait()
    assert (told["SLURM_JOB_ID"], told["SLURM_JOB_NODELIST"]) == ("7", "node1")


def test_a_salloc_that_gives_nothing_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_salloc(tmp_path, monkeypatch, "echo '{\"maintenance\": until tomorrow'")
    with contextlib.closing(HeldAllocation(WISH)) as held, pytest.raises(UsageError) as raised:
        held.wait()
    assert str(raised.value) == texts.allocation_refused('{"maintenance": until tomorrow')


def test_a_holders_line_that_makes_no_sense_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_salloc(tmp_path, monkeypatch, "echo 'allocation of shoal: 7'\ncat")
    with contextlib.closing(HeldAllocation(WISH)) as held, pytest.raises(UsageError) as raised:
        held.wait()
    assert str(raised.value) == texts.allocation_refused("allocation of shoal: 7")


def test_a_request_is_taken_back_although_something_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, taken_back = tmp_path / "asked", tmp_path / "taken-back"
    waits = f"touch {asked}; while :; do sleep 0.1; done"
    a_salloc(tmp_path, monkeypatch, f"trap 'touch {taken_back}; exit 1' INT\necho Welcome\n{waits}")
    with contextlib.closing(HeldAllocation(WISH)):
        limit = time.monotonic() + PATIENCE
        while not asked.exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
    assert taken_back.exists()
