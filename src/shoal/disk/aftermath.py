"""Completing the run directory after the processes of a job are gone."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from shoal import files
from shoal.disk.run_directory import CONFIG
from shoal.errors import CheckpointUnusable, UsageError
from shoal.events import AnyEvent, JobEnded, Record, StepsApplied, WorkerFailed

EVENTS = "events.jsonl"
TRACEBACK = "Traceback (most recent call last):"
# An attempt to resume that ends with one of these codes, without a step, does not count as a run of the job.
MISTAKES = (UsageError.exit_code, CheckpointUnusable.exit_code)


def put_in_order(run_dir: Path, record_start: int, end: JobEnded | None, settings_before: str | None) -> None:
    """`record_start`: bytes of the record before this run of the job. `end`: the end to write where the record has
    none; None: an error, whose end nobody wrote, is a crash. `settings_before`: the text of config.toml before this
    run; None for the first run.
    """
    with contextlib.suppress(OSError):  # what cannot be written is said elsewhere
        records = _end_record(run_dir / EVENTS, record_start, end)
        if settings_before is not None and is_mistake([record.event for record in records]):
            aside = run_dir / f".{CONFIG}-{secrets.token_hex(8)}"
            aside.write_text(settings_before, encoding="utf-8")
            aside.replace(run_dir / CONFIG)


def log_failure(run_dir: Path, failed: WorkerFailed) -> Path | None:
    """Add the traceback of a script to its worker's log: the worker does not print it, so that it is shown once.

    Returns the log; None: nothing was written.
    """
    if TRACEBACK not in failed.text:
        return None
    path = run_dir / "logs" / f"worker-{failed.worker}.log"
    try:
        with files.open_append(path) as log:
            log.write(f"{failed.text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return None
    return path


def is_mistake(events: list[AnyEvent]) -> bool:
    """Whether a run of the job failed because of how it was started, before any step."""
    ended = next((event for event in events if isinstance(event, JobEnded)), None)
    has_steps = any(isinstance(event, StepsApplied) for event in events)
    return ended is not None and ended.exit_code in MISTAKES and not has_steps


def _end_record(path: Path, record_start: int, end: JobEnded | None) -> list[Record]:
    """The records of this run, with an end: a second Ctrl-C, which kills the coordinator too, is no crash."""
    records = []
    for line in files.whole_lines(path, record_start):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            records.append(msgspec.json.decode(line, type=Record))
    if not records or end is None or any(isinstance(record.event, JobEnded) for record in records):
        return records
    now = max(time.time(), records[-1].time)  # the coordinator's clock may differ
    end = msgspec.structs.replace(end, seconds=now - records[0].time)
    torn = b"" if files.tail(path, 1) == b"\n" else b"\n"
    with files.open_append(path) as file:
        file.write(torn + msgspec.json.encode(Record(time=now, event=end)) + b"\n")
    return records


def record_size(run_dir: Path) -> int:
    """Bytes of the record so far."""
    path = run_dir / EVENTS
    return path.stat().st_size if path.exists() else 0
