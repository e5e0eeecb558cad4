"""The job's record on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.events import Advised, Record
from shoal.membership.journal import FILE_NAME, KEPT, Journal


def record(number: int) -> Record:
    return Record(time=float(number), event=Advised(worker=0, text=f"number {number}"))


def test_lines_can_be_read_while_the_job_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    journal.write(record(1))
    journal.write(record(2))
    journal.flush()
    lines = (tmp_path / "run" / FILE_NAME).read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Record) for line in lines] == [record(1), record(2)]
    journal.close()


def test_a_late_watcher_is_shown_a_bounded_number_of_events() -> None:
    journal = Journal(None)
    for number in range(KEPT + 5):
        journal.write(record(number))
    assert list(journal.recent) == [record(number) for number in range(5, KEPT + 5)]


def test_a_full_disk_is_said_once_and_does_not_end_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE_NAME).symlink_to("/dev/full")
    journal = Journal(tmp_path)
    for number in range(3):
        journal.write(record(number))
        journal.flush()
    journal.close()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert FILE_NAME in said[0]
