"""What a run directory says of its job, whatever state it is in."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.watch.record.run_record import is_running, read_record
from shoal.watch.record.story import MOST_CHECKPOINTS, Story
from shoal.watch.record.timeline import MOST_ENTRIES, entry_of
from support.records import Job, applied, eventful, job_started

END = events.JobEnded(outcome="finished", exit_code=0, reason="all workers finished", seconds=9.0)


def told(*happened: tuple[float, events.Event]) -> Story:
    story = Story()
    for time, event in happened:
        story.add(events.Record(time=time, event=event))  # type: ignore[arg-type]  the base of all that are in it
    return story


def hold_lock(run_dir: Path) -> int:
    lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


@pytest.mark.parametrize(
    ("happened", "held", "state"),
    [
        ([], False, "not started"),
        ([], True, "running"),
        ([job_started()], True, "running"),
        ([job_started()], False, "crashed"),
        ([job_started(), END], False, "finished"),
        ([job_started(), END], True, "finished"),
        ([job_started(), END, job_started()], True, "running"),
        ([job_started(), END, job_started()], False, "crashed"),
        ([job_started(), job_started(), msgspec.structs.replace(END, outcome="stopped")], False, "stopped"),
    ],
)
def test_state(tmp_path: Path, happened: list[events.Event], held: bool, state: str) -> None:
    job = Job(tmp_path / "run")
    job.tell(*happened)
    job.write()
    lock = hold_lock(job.run_dir) if held else None
    assert read_record(job.run_dir).state == state
    if lock is not None:
        os.close(lock)


def test_lock_of_another_process_is_seen_and_gone_when_it_is_killed(tmp_path: Path) -> None:
    hold = "import fcntl, time; f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_running(tmp_path)
        process.kill()
        process.wait()
    assert not is_running(tmp_path)


def test_looking_does_not_take_the_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert not is_running(tmp_path)
    os.close(hold_lock(tmp_path))


def test_eventful_job(tmp_path: Path) -> None:
    record = read_record(eventful(tmp_path / "run"))
    story = record.story
    assert (record.name, record.state, record.step, record.total_steps) == ("run", "finished", 600, 600)
    assert record.result.startswith("accuracy 0.99")
    assert [event.step for event in story.resumes] == [300]
    assert (story.published, story.lost) == (7, 1)
    assert [made.name for made in story.checkpoints.values() if made.state == "published"] == [
        "step-00000400-g1",
        "step-00000500-g1",
        "step-00000600-g1",
    ]
    assert story.checkpoints["step-00000500-g1"].mark == "best"
    assert story.timeline.counts["void steps"] == 1, "three workers reported one void step"
    assert record.problems == ()
    assert 180 < story.seconds < 220, "the day between the two goes does not count"
    assert sorted(story.workers) == [0, 1, 2]


def test_reasons_are_told_word_for_word(tmp_path: Path) -> None:
    entries = read_record(eventful(tmp_path / "run")).story.timeline.entries
    reasons = [entry.reason for entry in entries]
    for reason in (
        "worker 3 (hut, process 803) was killed by SIGKILL",
        "part-1-of-3.safetensors: No space left on device",
        "the checksum of fc.weight differs",
        "the one before is still being written",
        "SIGTERM",
    ):
        assert reason in reasons
    problems = [entry.title for entry in entries if entry.is_problem]
    begins = [title.partition(" ")[0] for title in problems]
    assert begins == ["worker", "step", "step-00000450-g2", "step-00000400-g2", "warning"]


def test_scores_after_the_resumed_step_are_forgotten() -> None:
    evaluated = [
        (float(step), events.Evaluated(step=step, samples=1, scores={"accuracy": step / 100})) for step in (10, 20, 30)
    ]
    resumed = events.Resumed(checkpoint="c", step=20, workers=1, reason="")
    story = told((0.0, job_started()), *evaluated, (40.0, job_started()), (41.0, resumed))
    assert [(point.step, point.mean) for point in story.scores["accuracy"].points()] == [(10, 0.1), (20, 0.2)]
    assert story.step == 20


def test_step_of_a_resumed_job_is_not_that_of_the_old_metrics(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step in (1, 2, 3):
        job.step(step, {})
    job.at += 10.0
    job.tell(job_started(), events.Resumed(checkpoint="c", step=1, workers=1, reason=""))
    job.write()
    assert read_record(job.run_dir).step == 1
    with (job.run_dir / "metrics.jsonl").open("ab") as file:
        job.step(2, {})
        file.write(job.metrics[-1] + b"\n")
    assert read_record(job.run_dir).step == 2


def test_time_between_goes_does_not_count() -> None:
    story = told((100.0, job_started()), (110.0, applied(0, 1)), (500.0, job_started()), (520.0, applied(0, 2)))
    assert [story.elapsed(time) for time in (0.0, 100.0, 105.0, 300.0, 500.0, 520.0, 521.0)] == [
        0.0,
        0.0,
        5.0,
        10.0,
        10.0,
        30.0,
        31.0,
    ]


def test_damaged_record_says_what_is_left_out(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started(), applied(0, 5))
    job.lines.insert(1, b'{"time":1.0,"event":{"kind":"from-the-future","x":1}}')
    job.lines.insert(1, b"\xff\xfe garbage")
    job.write(torn=b'{"time":1.0,"ev')
    (job.run_dir / "config.toml").write_text("workers = \n")
    record = read_record(job.run_dir)
    assert (record.state, record.step) == ("crashed", 5)
    assert len(record.problems) == 2
    assert "config.toml cannot be read" in record.problems[0]
    assert record.problems[1] == "2 lines of events.jsonl left out: damaged, or written by another version"


def test_endless_record_is_bounded() -> None:
    published = [
        (
            float(step),
            events.CheckpointPublished(
                checkpoint=f"c{step}", step=step, size=1, seconds=1.0, blocked=0.5, removed=(), reason=""
            ),
        )
        for step in range(3 * MOST_CHECKPOINTS)
    ]
    story = told((0.0, job_started()), *published)
    assert (story.published, len(story.checkpoints)) == (3 * MOST_CHECKPOINTS, MOST_CHECKPOINTS)
    assert story.blocked == pytest.approx(1.5 * MOST_CHECKPOINTS)
    assert len(story.timeline.entries) == MOST_ENTRIES + 1
    assert story.timeline.left_out == 3 * MOST_CHECKPOINTS - MOST_ENTRIES
    assert story.timeline.entries[-1].step == 3 * MOST_CHECKPOINTS - 1


@given(st.binary(max_size=400), st.binary(max_size=400), st.binary(max_size=100))
def test_no_bytes_in_the_files_raise(
    tmp_path_factory: pytest.TempPathFactory, lines: bytes, metrics: bytes, config: bytes
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    for name, content in (("events.jsonl", lines), ("metrics.jsonl", metrics), ("config.toml", config)):
        (run_dir / name).write_bytes(content + b"\n")
    assert read_record(run_dir).state == "not started"


def example(kind: type[events.Event]) -> events.Event:
    """One of a kind, with something in every field that has no default."""
    texts, numbers = (
        dict.fromkeys(("Name", "Text"), "text"),
        dict.fromkeys(("Ordinal", "Count", "Total", "ExitCode"), 1),
    )
    samples = {**texts, **numbers, "float": 1.0, "bool": False, "TimeShares": {}}
    fields = {
        field.name: samples.get(kind.__annotations__[field.name].partition(" ")[0], ())
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    return msgspec.convert(
        {name: {} if name in ("values", "scores") else value for name, value in fields.items()}, kind
    )


def test_every_kind_of_event_is_told_but_for_what_is_summed_up_elsewhere() -> None:
    kinds = get_args(events.AnyEvent)
    silent = {kind for kind in kinds if entry_of(example(kind), 0.0) is None}
    assert silent == {
        events.StepsApplied,
        events.LoopStarted,
        events.LoopEnded,
        events.CheckpointStarted,
        events.ServersMeasured,
        events.WorkerEquipped,
        events.FileTruncated,
    }


def test_totals_of_a_worker_are_those_of_all_its_processes(tmp_path: Path) -> None:
    """Each start of the job counts anew, and worker 0 of one is another process than worker 0 of the next."""
    job = Job(tmp_path / "run")
    for samples in (100, 40):
        job.tell(job_started())
        for part in (0.5, 1.0):
            job.at += 5.0
            job.tell(applied(0, 10, samples=int(part * samples), seconds=part * 4.0, bytes_sent=int(part * 8)))
    state = read_record(job.write()).story.workers[0]
    assert (state.samples, state.seconds, state.bytes_sent) == (140, 8.0, 16)
