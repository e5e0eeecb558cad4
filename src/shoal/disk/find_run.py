"""Which run a command means: a path, a name or the beginning of one under `runs/`, or `last`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shoal.disk import texts
from shoal.disk.run_directory import CONFIG, PARENT
from shoal.errors import UsageError
from shoal.settings.setting_checks import nearest

LAST = "last"


def find_run(text: str, parent: Path = PARENT) -> Path:
    """The run directory. A path beats a name under `parent`, a whole name beats a beginning."""
    for path in (Path(text), parent / text):
        if text and os.path.lexists(path / CONFIG):  # even a broken one: reading it will say what is wrong
            return path
    runs = runs_under(parent)
    if text == LAST and runs:
        return runs[0]
    beginning = [path for path in runs if text and path.name.startswith(text)]
    if len(beginning) == 1:
        return beginning[0]
    if beginning:
        names = ", ".join(path.name for path in beginning[:5]) + (", ..." if len(beginning) > 5 else "")
        raise UsageError(texts.several_runs(text, len(beginning), names))
    if Path(text).is_dir() and text:
        raise UsageError(texts.no_run_directory(text, CONFIG))
    if not runs:
        raise UsageError(texts.no_run(text, f", and none under {parent}/; give the path of a run directory"))
    raise UsageError(texts.no_run(text, f"; {nearest(text, tuple(path.name for path in runs[:10]))}"))


def runs_under(parent: Path) -> list[Path]:
    """Run directories, most recently started or resumed first."""
    found = []
    for config in parent.glob(f"[!.]*/{CONFIG}"):
        with contextlib.suppress(OSError):  # it has just been removed
            found.append((config.stat().st_mtime, config.parent))
    return [path for _, path in sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)]
