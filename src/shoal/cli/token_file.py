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
    folder = Path(tempfile.mkdtemp(prefix="shoal-", dir=runtime_folder()))  # mode 0700
    try:
        path = folder / "token"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        yield path.absolute()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path} cannot be read: {error}") from None
    if not token:
        raise UsageError(f"--token-file {path} is empty; it should hold the job's token on one line")
    return token
