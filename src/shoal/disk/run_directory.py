"""The folder that one job leaves behind: its name, how it is made (completely or not at all), and its lock.

In it: `config.toml` (every setting), `events.jsonl`, `metrics.jsonl` and `decisions.sqlite` (by the coordinator),
`logs/` (what each process printed), `checkpoints/`, `report.html`, and while the job runs `join` (how to) and the
`lock` that launcher and coordinator hold. A job that is resumed goes on in the same folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path

import msgspec

from shoal import files
from shoal.disk import texts
from shoal.errors import RunDirectoryExists, UsageError
from shoal.job_config import JobConfig
from shoal.settings.engines.engine_settings import LOCAL

PARENT = Path("runs")
CONFIG = "config.toml"
LOCK = "lock"
JOIN = "join"  # while the job runs: the command that adds a worker to it
DECISIONS = "decisions.sqlite*"  # the coordinator's decisions; SQLite may have other files beside them
LOCK_SECONDS = 3.0  # to wait for the lock: a coordinator outlives a killed launcher by up to two seconds
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@dataclass(frozen=True)
class RunDirectory:
    path: Path
    config: JobConfig  # with the path in it, as saved in the folder
    lock: FileIO  # held until it is closed here and in every process that inherited it
    settings_before: str | None = None  # earlier text of config.toml, if a job is resumed


def create(config: JobConfig, title: str) -> RunDirectory:
    """Make the run directory and hold it. `title`: the script, or what else to name it after.

    Its path is absolute if workers run elsewhere: where they share the file system, they find checkpoints by it.
    """
    if config.run_dir:
        if config.on != LOCAL:
            config = msgspec.structs.replace(config, run_dir=str(Path(config.run_dir).absolute()))
        path = Path(config.run_dir)
        if (lock := _claim(path, config)) is None:
            raise _taken(path)
        return RunDirectory(path, config, lock)
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', Path(title).stem)}"
    parent = PARENT if config.on == LOCAL else PARENT.absolute()
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        named = msgspec.structs.replace(config, run_dir=str(path))
        if (lock := _claim(path, named)) is not None:
            return RunDirectory(path, named, lock)
        number += 1


def refuse_taken(config: JobConfig) -> None:
    """Raises what `create` would raise, if that can be seen now."""
    if not config.run_dir:
        return
    path = Path(config.run_dir)
    try:
        is_free = not path.is_symlink() and (not path.exists() or (path.is_dir() and not any(path.iterdir())))
    except OSError as error:
        raise UsageError(texts.run_directory_not_made(path, error.strerror)) from None
    if not is_free:
        raise _taken(path)


def _taken(path: Path) -> RunDirectoryExists:
    return RunDirectoryExists(texts.run_directory_taken(path, has_job=os.access(path / CONFIG, os.F_OK)))


def reopen(config: JobConfig, lock: FileIO) -> RunDirectory:
    """Save the settings with which the job in `config.run_dir` goes on. The caller holds its lock."""
    path = Path(config.run_dir)
    aside = path / f".{CONFIG}-{secrets.token_hex(8)}"
    try:
        (path / "logs").mkdir(exist_ok=True)
        before = files.read_plain(path / CONFIG, files.MOST_TOML).decode("utf-8")
        aside.write_text(config.to_toml(), encoding="utf-8")
        aside.replace(path / CONFIG)
        for decisions in path.glob(DECISIONS):  # from a job that is over: this one begins with a checkpoint
            decisions.unlink()
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UsageError(texts.run_directory_not_written(path, error.strerror or error)) from None
    return RunDirectory(path, config, lock, before)


def hold(path: Path) -> FileIO:
    """Lock an existing run directory. Raises UsageError while another job runs in it."""
    try:
        lock = files.open_append(path / LOCK)
    except OSError as error:
        raise UsageError(texts.run_directory_not_held(path, LOCK, error.strerror or error)) from None
    limit = time.monotonic() + LOCK_SECONDS
    while not _try_lock(lock):
        if time.monotonic() > limit:
            lock.close()
            raise UsageError(texts.still_running(path))
        time.sleep(0.05)
    return lock


def _try_lock(lock: FileIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: go on without one rather than fail
    return True


def _claim(path: Path, config: JobConfig) -> FileIO | None:
    """Fill a folder beside `path` and rename it: of two jobs that want one name, exactly one gets it, and its lock."""
    made: Path | None = None
    lock: FileIO | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.parent / f".{path.name}-{secrets.token_hex(8)}"
        made.mkdir()
        (made / "logs").mkdir()
        (made / CONFIG).write_text(config.to_toml(), encoding="utf-8")
        lock = (made / LOCK).open("ab", buffering=0)
        _try_lock(lock)
        made.rename(path)
        return lock
    except OSError as error:
        if lock is not None:
            lock.close()
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if error.errno in TAKEN and (path.exists() or path.is_symlink()):
            return None
        raise UsageError(texts.run_directory_not_made(path, error.strerror)) from None
