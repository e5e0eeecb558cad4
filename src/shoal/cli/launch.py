"""`shoal run` for Python: the same names, the same checks, the same exit codes."""

from __future__ import annotations

import os

from shoal.cli.job import run_job
from shoal.cli.options import merge


def launch(
    script: str | os.PathLike[str], *arguments: str, config: str | os.PathLike[str] | None = None, **options: object
) -> int:
    """Run `script` as `shoal run` would and return the job's exit code.

    Options are the settings of `shoal run` in Python's spelling: `launch("train.py", "--lr", "0.1", workers=4)`. A
    mistake in them raises `UsageError`; how the job itself ends is printed and is the return value.
    """
    merged = merge(options, file=None if config is None else os.fspath(config), origin="shoal.launch()")
    return run_job(merged, os.fspath(script), arguments)
