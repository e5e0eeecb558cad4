"""`shoal run` for Python: the same names, the same checks, the same exit codes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from shoal.disk.resuming import recorded_job, resumed_settings
from shoal.disk.settings_merge import merge
from shoal.launching.run_job import run_job


def launch(
    script: str | os.PathLike[str], *arguments: str, config: str | os.PathLike[str] | None = None, **options: object
) -> int:
    """Run `script` as `shoal run` would and return the job's exit code.

    Options are the settings of `shoal run` in Python's spelling: `launch("train.py", "--lr", "0.1", workers=4)`. A
    mistake in them raises `UsageError`; how the job itself ends is printed and is the return value.

    `launch("", resume="runs/one")` goes on with a job: an empty script means the recorded one with its arguments.
    """
    merged_over = partial(merge, options, file=None if config is None else os.fspath(config), origin="shoal.launch()")
    name, merged = os.fspath(script), merged_over()
    if merged.resume:
        merged = resumed_settings(merged, lambda base: merged_over(base=base))
        if not name:
            name, arguments = recorded_job(Path(merged.run_dir))
    return run_job(merged, name, arguments)
