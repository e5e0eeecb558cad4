"""What a script is, before any of its processes has said so: one of ours, or a plain one that never joins a job.

The source is read and parsed, never run. Not here: what follows for a process that dies (`membership.verdicts`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 4 * 1024 * 1024  # of a file that is looked at


def imports_shoal(script: Path) -> bool:
    """Whether the script, or a module beside it that it imports, imports shoal: then its workers will join the job."""
    seen: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imported(path):
            if name.partition(".")[0] == "shoal":
                return True
            waiting += _beside(script, name)
    return False


def _imported(path: Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, wherever in it; none where it cannot be read or parsed."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _beside(script: Path, name: str) -> Iterator[Path]:
    """The files of a module, where it lies beside the script."""
    if not name:
        return
    path = script.parent.joinpath(*name.split("."))
    yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())
