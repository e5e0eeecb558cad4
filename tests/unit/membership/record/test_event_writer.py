"""The job's record on disk."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from shoal.events import (
    Advised,
    CoordinatorReturned,
    GenerationFormed,
    JobEnded,
    Record,
    StepsApplied,
    WorkerReturned,
)
from shoal.membership.record.event_writer import FILE_NAME, KEPT, METRICS_NAME, EventWriter
from shoal.steps import MetricLine, StepRow
from shoal.values import TimeShares


def record(number: int) -> Record:
    return Record(time=float(number), event=Advised(worker=0, text=f"number {number}"))


def test_lines_can_be_read_while_the_job_runs(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "run")
    writer.write(record(1))
    writer.write(record(2))
    writer.flush()
    lines = (tmp_path / "run" / FILE_NAME).read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Record) for line in lines] == [record(1), record(2)]
    writer.close()


def test_a_late_watcher_is_shown_a_bounded_number_of_events() -> None:
    writer = EventWriter(None)
    for number in range(KEPT + 5):
        writer.write(record(number))
    assert list(writer.recent) == [record(number) for number in range(5, KEPT + 5)]


def steps(step: int, time: float, *rows: int) -> Record:
    """A report of one worker, with totals; its clock is 1000 seconds behind."""
    made = tuple(StepRow(row, 0, 0.1, 8, {"loss": 0.5}, 8, 1, time - 1000) for row in rows or (step,))
    event = StepsApplied(
        worker=0, generation=1, step=step, epoch=0, samples=8 * step, seconds=0.1 * step, shares=TimeShares(),
        bytes_sent=0, values={"loss": 0.5}, rows=made, clock=time - 1000,
    )  # fmt: skip
    return Record(time=time, event=event)


FORMED = GenerationFormed(generation=1, workers=(0,), schedule="ring", codec="identity", reason="all joined")


def read_events(folder: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in (folder / FILE_NAME).read_bytes().splitlines()]


def read_metrics(folder: Path) -> list[MetricLine]:
    lines = (folder / METRICS_NAME).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=MetricLine) for line in lines]


def test_every_step_has_a_line_of_metrics_and_events_have_few(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.write(Record(time=0.0, event=FORMED))
    shown = [writer.write(steps(step, step / 10)) for step in range(1, 41)]
    writer.flush()
    assert [line.step for line in read_metrics(tmp_path)] == list(range(1, 41))
    assert len(read_events(tmp_path)) == 2, "the generation and the first report"
    assert all(len(records) == 1 for records in shown)
    assert all(isinstance(one.event, StepsApplied) and one.event.rows == () for (one,) in shown)
    assert list(writer.recent)[1:] == [one for (one,) in shown]
    writer.write(Record(time=4.1, event=JobEnded(outcome="finished", exit_code=0, reason="", seconds=4.1)))
    writer.close()
    *_, last, ended = read_events(tmp_path)
    assert isinstance(last.event, StepsApplied)
    assert (last.event.step, last.event.samples) == (40, 40 * 8)
    assert isinstance(ended.event, JobEnded)
    assert b'"clock"' not in (tmp_path / FILE_NAME).read_bytes(), "which says nothing to anybody else"


def test_the_lines_of_metrics_are_as_documented(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.write(Record(time=0.0, event=FORMED))
    writer.write(steps(12, 1763190000.1234))
    writer.close()
    assert (tmp_path / METRICS_NAME).read_text() == (
        '{"step":12,"time":1763190000.123,"epoch":0,"generation":1,"seconds":0.1,"samples":8,"values":{"loss":0.5}}\n'
    )


def test_a_record_that_is_closed_without_an_end_holds_nothing_back(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.write(steps(1, 0.0))
    writer.write(steps(2, 0.1))  # its generation was never noted
    writer.close()
    assert len(read_events(tmp_path)) == 2
    assert [line.step for line in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("name", [FILE_NAME, METRICS_NAME])
def test_a_job_that_is_resumed_appends_after_a_line_that_a_crash_has_torn(tmp_path: Path, name: str) -> None:
    first = EventWriter(tmp_path)
    first.write(Record(time=0.0, event=FORMED))
    first.write(steps(1, 0.0))
    first.close()
    torn = (tmp_path / name).read_bytes()[:-9]
    (tmp_path / name).write_bytes(torn)
    second = EventWriter(tmp_path)
    second.write(Record(time=1.0, event=FORMED))
    second.write(steps(2, 1.0))
    second.close()
    text = (tmp_path / name).read_bytes()
    assert text.startswith(torn + b"\n{")
    assert text.endswith(b"\n")
    whole = (tmp_path / (METRICS_NAME if name == FILE_NAME else FILE_NAME)).read_bytes()
    assert b"\n\n" not in whole, "a file that is whole gets no empty line"


@pytest.mark.parametrize("name", [FILE_NAME, METRICS_NAME])
def test_a_full_disk_is_a_trouble_and_does_not_end_the_job(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    writer = EventWriter(tmp_path)
    writer.write(Record(time=0.0, event=FORMED))
    for number in range(3):
        writer.write(record(number))
        writer.write(steps(number + 1, 6.0 * number))
        writer.flush()
    [trouble] = writer.troubles
    assert trouble.error == "No space left on device"
    assert trouble.file == str(tmp_path / name)
    assert not trouble.holds_up
    writer.close()
    if name == FILE_NAME:
        assert len(read_metrics(tmp_path)) == 3, "the other file goes on"


def test_lines_of_metrics_go_on_where_a_coordinator_that_died_had_got_to(tmp_path: Path) -> None:
    """Workers that are back send their last rows again: none is written twice, and none waits for ever."""
    first = EventWriter(tmp_path)
    first.write(Record(time=0.0, event=FORMED))
    first.write(steps(2, 1.0, 1, 2))
    first.flush()
    second = EventWriter(tmp_path)  # the first one was killed: nothing was closed
    assert second.last_time == 1.0
    second.write(Record(time=2.0, event=CoordinatorReturned(generation=1, reason="killed", workers=(0,))))
    second.write(Record(time=2.0, event=WorkerReturned(worker=0, generation=1)))
    second.write(steps(3, 2.0, 1, 2, 3))
    second.flush()
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    first.close()
    second.close()
