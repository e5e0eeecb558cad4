"""Completing the run directory after the processes of a job are gone."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from shoal import files
from shoal.errors import CheckpointUnusable, UsageError
from shoal.events import AnyEvent, JobEnded, Record, StepsApplied
from shoal.launching.disk.run_directory import CONFIG
from shoal.launching.processes.specs import Job
from shoal.launching.supervision.orders import FinishJob

EVENTS = "events.jsonl"
# An attempt to resume that ends with one of these codes, without a step, does not count as a run of the job.
MISTAKES = (UsageError.exit_code, CheckpointUnusable.exit_code)


def put_in_order(job: Job, finish: FinishJob, settings_before: str | None) -> None:
    """`settings_before`: the text of config.toml before this run of the job; None for the first run."""
    with contextlib.suppress(OSError):  # what cannot be written is said elsewhere
        records = _end_record(job, finish)
        if settings_before is not None and is_mistake([record.event for record in records]):
            aside = job.run_dir / f".{CONFIG}-{secrets.token_hex(8)}"
            aside.write_text(settings_before, encoding="utf-8")
            aside.replace(job.run_dir / CONFIG)


def is_mistake(events: list[AnyEvent]) -> bool:
    """Whether a run of the job failed because of how it was started, before any step."""
    ended = next((event for event in events if isinstance(event, JobEnded)), None)
    has_steps = any(isinstance(event, StepsApplied) for event in events)
    return ended is not None and ended.exit_code in MISTAKES and not has_steps


def _end_record(job: Job, finish: FinishJob) -> list[Record]:
    """The records of this run, with an end: a second Ctrl-C, which kills the coordinator too, is no crash."""
    path = job.run_dir / EVENTS
    records = []
    for line in files.whole_lines(path, job.record_start):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            records.append(msgspec.json.decode(line, type=Record))
    if not records or finish.error or any(isinstance(record.event, JobEnded) for record in records):
        return records
    now = max(time.time(), records[-1].time)  # the coordinator's clock may differ
    seconds = now - records[0].time
    end = JobEnded(outcome="interrupted", exit_code=finish.exit_code, reason=finish.text, seconds=seconds)
    torn = b"" if files.tail(path, 1) == b"\n" else b"\n"
    with files.open_append(path) as file:
        file.write(torn + msgspec.json.encode(Record(time=now, event=end)) + b"\n")
    return records


def record_size(run_dir: Path) -> int:
    """Bytes of the record so far."""
    path = run_dir / EVENTS
    return path.stat().st_size if path.exists() else 0
