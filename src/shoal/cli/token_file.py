"""The file that holds a job's token: readable by its owner only, outside the run directory, gone when the job is."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shoal.environment import runtime_folder
from shoal.errors import UsageError


@contextlib.contextmanager
def token_file(token: str) -> Iterator[Path]:
    """The file's path, while the block runs."""
    parent = runtime_folder()
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix="shoal-", dir=parent))  # mode 0700
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            path = folder / "token"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(token)
        except OSError as error:
            raise UsageError(
                f"the job's token cannot be written in {parent}: {error.strerror}; set XDG_RUNTIME_DIR to another one"
            ) from None
        yield path.absolute()


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()  # as workers read it
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path} {_trouble(error)}") from None
    if not token:
        raise UsageError(f"--token-file {path} is empty; it should hold the job's token on one line")
    return token


def read_group_token(path: Path, *, named: str) -> str:
    """Of a group of parameter servers."""
    try:
        return read_token(path)
    except UsageError:
        raise UsageError(
            f"{named} {path} cannot be read as a token; `shoal servers start` names the file of a group that runs"
        ) from None


def _trouble(error: OSError | UnicodeDecodeError) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "is not there; `shoal show RUN` names the file of a job that runs, which is gone when the job is"
        case PermissionError():
            return "may not be read by this user; only who started the job may, so use a private copy of it"
        case IsADirectoryError():
            return "is a folder; it should be the file that `shoal show RUN` names"
        case UnicodeDecodeError():
            return "holds no plain text; it should hold the job's token on one line"
        case _:
            return f"cannot be read ({error.strerror}); `shoal show RUN` names the file of a job that runs"
