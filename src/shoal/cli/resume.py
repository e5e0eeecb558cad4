"""What `--resume` goes on with: the settings, the script and the arguments of a run's last job, unless given anew.

Reads the run directory and changes nothing in it. Not here: whether its checkpoints can be used (`checkpoint_place`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.cli.find_run import find_run
from shoal.cli.run_directory import CONFIG
from shoal.errors import UsageError
from shoal.events import JobStarted, Record
from shoal.job_config import JobConfig, from_mapping, read_toml

EVENTS = "events.jsonl"
MARK = b'"job-started"'  # in the line of every JobStarted, and in few others


def resumed_settings(given: JobConfig, again: Callable[[Mapping[str, Any]], JobConfig]) -> JobConfig:
    """The settings of a job that goes on in `given.resume`. `again(base)` puts what was given on top of others."""
    path = find_run(given.resume)
    if given.run_dir and Path(given.run_dir).resolve() != path.resolve():
        raise UsageError(
            f"--run-dir {given.run_dir} and --resume {given.resume} are both given; a resumed job goes on in its own "
            "run directory: leave --run-dir out, or give --resume= to start a new job"
        )
    file = path / CONFIG
    recorded = {name.replace("_", "-"): value for name, value in read_toml(file).items()}
    from_mapping(recorded, origin=str(file))
    base = {name: value for name, value in recorded.items() if name not in ("run-dir", "resume")}
    return msgspec.structs.replace(again(base), run_dir=str(path), resume=str(path))


def recorded_job(path: Path) -> tuple[str, tuple[str, ...]]:
    """Script and arguments of the last job in this run directory."""
    found: JobStarted | None = None
    try:
        with (path / EVENTS).open("rb") as lines:
            for line in lines:
                if MARK in line and (event := _event(line)) is not None:
                    found = event
    except OSError:
        pass  # no job has run here yet
    if found is None or not found.script:
        raise UsageError(f"{path / EVENTS} names no script; use `shoal run --resume {path} SCRIPT [its arguments]`")
    return found.script, found.arguments


def _event(line: bytes) -> JobStarted | None:
    """None for other events that quote one, and for a line that a crash has torn."""
    try:
        event = msgspec.json.decode(line, type=Record).event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event if isinstance(event, JobStarted) else None
