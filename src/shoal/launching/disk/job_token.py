"""Private files of a job, such as its token: readable by their owner only, outside the run directory, gone when it is.

The launcher that made a file holds a lock on it as long as it lives. If launcher and guardian are killed together,
the file's lock is free, and the next job of the same user on the same machine removes it. Not here: reading a token
(`wire.token_file`) and a function (`entry.function_script`).
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
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.environment import runtime_folder
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.wire import token_file as wire

TOKEN = "token"  # noqa: S105  a file's name
FUNCTION = "function.pickle"  # the function that workers call, where they cannot import it
UNFINISHED = ".shoal-"  # begins the name of a folder whose file is not locked yet
UNFINISHED_SECONDS = 3600.0  # after which such a folder counts as left behind


def token_file(token: str) -> contextlib.AbstractContextManager[Path]:
    return private_file(TOKEN, token.encode("ascii"), texts.token_not_written)


@contextlib.contextmanager
def private_file(name: str, data: bytes, not_written: Callable[[Path, str | None], str]) -> Iterator[Path]:
    """The file's path, while the block runs. Removes what killed jobs of this user have left.

    `name` is one of `TOKEN` and `FUNCTION`; `not_written(folder, why)`: what to say if it cannot be made.
    """
    parent = runtime_folder()
    sweep(parent)
    with contextlib.ExitStack() as stack:
        try:
            made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=parent))  # mode 0700
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            descriptor = os.open(made / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(data)
            # A folder of this name may be swept unless it is locked: so it gets the name last.
            folder = made.rename(parent / f"{_prefix()}{secrets.token_hex(8)}")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        except OSError as error:
            raise UsageError(not_written(parent, error.strerror)) from None
        yield (folder / name).absolute()


def sweep(parent: Path) -> None:
    """Remove folders of this user's jobs whose launchers are gone, but nothing that others could have put there."""
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
    """Work through descriptors, so that nobody can replace a folder after it was checked."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return
        if name.startswith(UNFINISHED) and time.time() - found.st_mtime < UNFINISHED_SECONDS:
            return
        for file in (TOKEN, FUNCTION):
            with contextlib.suppress(FileNotFoundError):
                _remove_unlocked(folder, file)
        os.rmdir(name, dir_fd=place)
    finally:
        os.close(folder)


def _remove_unlocked(folder: int, name: str) -> None:
    """Raises OSError if the launcher that made the file is alive."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)


def _prefix() -> str:
    """Contains the machine's name: in a folder that several machines share, locks may not work across them."""
    return f"shoal-{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}-"


def read_token(path: Path) -> str:
    """The token of a job, from the file that --token-file names."""
    return _read(path, "--token-file", texts.FILE_OF_JOB)


def read_group_token(path: Path, *, named: str) -> str:
    """The token of a group of parameter servers."""
    return _read(path, named, texts.FILE_OF_GROUP)


def _read(path: Path, named: str, advice: str) -> str:
    try:
        return wire.read_token(path)
    except wire.TokenFileError as error:
        advice = advice if isinstance(error, wire.NoTokenFile) else ""
        raise UsageError(texts.token_unreadable(named, path, error, advice)) from None
