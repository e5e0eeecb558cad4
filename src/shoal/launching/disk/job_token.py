"""The file that holds a job's token: readable by its owner only, outside the run directory, gone when the job is.

Its maker holds a lock on it for as long as it lives, so that a file whose maker was killed together with its guardian
is known for what it is, and removed by the next job of the same user on the same machine. Reading is in
`wire.token_file`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.environment import runtime_folder
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.wire import token_file as wire

TOKEN = "token"  # noqa: S105  a file's name
UNFINISHED = ".shoal-"  # begins the name of a folder whose token is not locked yet
UNFINISHED_SECONDS = 3600.0  # after which such a folder counts as left behind


@contextlib.contextmanager
def token_file(token: str) -> Iterator[Path]:
    """The file's path, while the block runs. Removes what killed jobs of this user have left."""
    parent = runtime_folder()
    sweep(parent)
    with contextlib.ExitStack() as stack:
        try:
            made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=parent))  # mode 0700
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            descriptor = os.open(made / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, token.encode("ascii"))
            # Under this name it may be swept, unless it is locked: so it gets the name last.
            folder = made.rename(parent / f"{_prefix()}{secrets.token_hex(8)}")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        except OSError as error:
            raise UsageError(texts.token_not_written(parent, error.strerror)) from None
        yield (folder / TOKEN).absolute()


def sweep(parent: Path) -> None:
    """Remove folders of this user's jobs whose maker is gone. Nothing that somebody else could have put there."""
    with contextlib.suppress(OSError):
        place = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(place):  # noqa: PTH208  of a descriptor
                if name.startswith((_prefix(), UNFINISHED)):
                    with contextlib.suppress(OSError):  # it is in use, gone, or not ours
                        _sweep(place, name)
        finally:
            os.close(place)


def _sweep(place: int, name: str) -> None:
    """Through descriptors, so that nothing can be put in the place of what was looked at."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return
        if name.startswith(UNFINISHED) and time.time() - found.st_mtime < UNFINISHED_SECONDS:
            return
        with contextlib.suppress(FileNotFoundError):
            _remove_unlocked(folder)
        os.rmdir(name, dir_fd=place)
    finally:
        os.close(folder)


def _remove_unlocked(folder: int) -> None:
    """`OSError`: its maker lives."""
    token = os.open(TOKEN, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(token, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(TOKEN, dir_fd=folder)
    finally:
        os.close(token)


def _prefix() -> str:
    """Names the machine: a folder that several machines share may not pass their locks on."""
    return f"shoal-{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}-"


def read_token(path: Path) -> str:
    """Of a job, as the option --token-file names it."""
    advice = "`shoal show RUN` names the file of a job that runs, which is gone when the job is"
    return _read(path, "--token-file", advice)


def read_group_token(path: Path, *, named: str) -> str:
    """Of a group of parameter servers."""
    return _read(path, named, "`shoal servers start` names the file of a group that runs")


def _read(path: Path, named: str, advice: str) -> str:
    try:
        return wire.read_token(path)
    except wire.TokenFileError as error:
        then = advice if isinstance(error, wire.NoTokenFile) else ""
        raise UsageError(texts.token_unreadable(named, path, error, then)) from None
