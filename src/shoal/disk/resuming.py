"""What `--resume` goes on with: settings, script and arguments of the run's last job, unless they are given again.

Reads the run directory and changes nothing in it. Not here: whether its checkpoints can be used (`checkpoint_place`).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal import files
from shoal.disk import checkpoint_place, texts
from shoal.disk.aftermath import EVENTS, is_mistake
from shoal.disk.find_run import find_run
from shoal.disk.run_directory import CONFIG
from shoal.environment import parse_address, times_requeued
from shoal.errors import CheckpointUnusable, UsageError
from shoal.events import AnyEvent, JobEnded, JobStarted, Record, StepsApplied
from shoal.job_config import JobConfig, from_mapping, read_toml
from shoal.values import Address

ANYWHERE = "127.0.0.1:0"  # the default of --address
MARKS = (b'"job-started"', b'"job-ended"', b'"steps-applied"')  # in the lines of events that count here


def resumed_settings(given: JobConfig, again: Callable[[Mapping[str, Any]], JobConfig]) -> JobConfig:
    """The settings of a job that is resumed in `given.resume`. `again(base)` merges the given settings over `base`."""
    path = find_run(given.resume)
    if given.run_dir and Path(given.run_dir).resolve() != path.resolve():
        raise UsageError(texts.two_run_directories(given.run_dir, given.resume))
    file = path / CONFIG
    recorded = {name.replace("_", "-"): value for name, value in read_toml(file).items()}
    engine = from_mapping(recorded, origin=str(file)).engine
    base = {name: value for name, value in recorded.items() if name not in ("run-dir", "resume")}
    address = parse_address(str(base.get("address", ANYWHERE)), named="--address")
    if engine.launcher_moves:
        base["address"] = ANYWHERE
    elif address.is_loopback:  # take any port: the old one may be in use by now, and nobody outside knows it
        base["address"] = str(Address(address.host, 0))
    return msgspec.structs.replace(again(base), run_dir=str(path), resume=str(path))


def after_requeue(given: JobConfig) -> JobConfig:
    """A job that its cluster has put back into the queue goes on with the run that it began, if it has a checkpoint."""
    if given.resume or not given.run_dir or not times_requeued(given.engine.restart_count):
        return given
    try:
        checkpoint_place.require_checkpoint(given)
    except CheckpointUnusable:
        return given
    return msgspec.structs.replace(given, resume=given.run_dir)


def recorded_job(path: Path) -> tuple[str, tuple[str, ...]]:
    """Script and arguments of the last job in this run directory, ignoring runs that failed to start."""
    found: JobStarted | None = None
    started: JobStarted | None = None
    since: list[AnyEvent] = []  # the end of the last one started, and its first steps
    try:
        for line in files.whole_lines(path / EVENTS):
            if not any(mark in line for mark in MARKS) or (event := _event(line)) is None:
                continue
            if isinstance(event, JobStarted):
                found = found if is_mistake(since) else started or found
                started, since = event, []
            elif isinstance(event, JobEnded) or (isinstance(event, StepsApplied) and not since):
                since.append(event)
    except FileNotFoundError:
        pass  # no job has run here yet
    except OSError as error:
        raise UsageError(texts.record_unreadable(path / EVENTS, error.strerror, path)) from None
    found = found if is_mistake(since) and found is not None else started or found
    if found is None or not found.script:
        raise UsageError(texts.record_names_no_script(path / EVENTS, path))
    return found.script, found.arguments


def strangers_hand(path: Path) -> str:
    """Who else could have written the run directory, as a text; empty if only this user could.

    The script that a record names runs with the rights of the user who resumes it.
    """
    for file in (path, path / EVENTS, path / CONFIG):
        with contextlib.suppress(OSError):  # the file is not there
            found = file.stat()
            if found.st_uid != os.geteuid():
                return texts.belongs_to(file, _user(found.st_uid))
            if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
                return texts.writable_by_all(file)
    return ""


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"


def _event(line: bytes) -> AnyEvent | None:
    """None for a line that a crash cut short."""
    try:
        return msgspec.json.decode(line, type=Record).event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
