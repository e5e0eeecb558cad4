"""The folder that one job leaves behind: its name, and how it comes to be, whole or not at all.

In it: `config.toml` (every setting), `events.jsonl` (by the coordinator), `logs/` (what each process printed).
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
from datetime import datetime
from pathlib import Path

import msgspec

from shoal.errors import RunDirectoryExists, UsageError
from shoal.job_config import JobConfig

PARENT = Path("runs")
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def create(config: JobConfig, script: str) -> tuple[Path, JobConfig]:
    """Make the run directory; the settings come back with its name in them, as they are saved there."""
    if config.run_dir:
        path = Path(config.run_dir)
        if not _claim(path, config):
            raise RunDirectoryExists(
                f"the run directory {path} is already there and not empty; name another with --run-dir, or remove it"
            )
        return path, config
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', Path(script).stem)}"
    number = 1
    while True:
        path = PARENT / (name if number == 1 else f"{name}-{number}")
        named = msgspec.structs.replace(config, run_dir=str(path))
        if _claim(path, named):
            return path, named
        number += 1


def _claim(path: Path, config: JobConfig) -> bool:
    """Fill a folder beside it and rename: of two jobs that want one name, exactly one gets it."""
    made: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.parent / f".{path.name}-{secrets.token_hex(8)}"
        made.mkdir()
        (made / "logs").mkdir()
        (made / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        made.rename(path)
        return True
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if error.errno in TAKEN and (path.exists() or path.is_symlink()):
            return False
        raise UsageError(
            f"the run directory {path} cannot be made: {error.strerror}; name another with --run-dir"
        ) from None
