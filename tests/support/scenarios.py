"""Scenario files: commands, each followed by `----` and what a pure core answers. The file's text is what is expected.

Empty lines and lines that begin with `#` stay as they are. Not here: the commands (`support.membership`,
`support.ledger_scenarios`, `support.keeper_scenarios`, `support.supervision_scenarios`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEPARATOR = "----"
FOLDER = Path(__file__).parents[1] / "scenarios"


def replay(text: str, run: Callable[[str], list[str]]) -> str:
    """The scenario with the answers that the core gives today; `run` takes one command."""
    out: list[str] = []
    answering = False
    for line in text.splitlines():
        if answering and line.strip():
            continue
        answering = False
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out += [SEPARATOR, *run(line)]
            answering = True
    return "\n".join(out) + "\n"


def named(*prefixes: str) -> list[Path]:
    """The scenario files whose names begin so."""
    return sorted(path for prefix in prefixes for path in FOLDER.glob(f"{prefix}_*.txt"))


def difference(path: Path, run: Callable[[str], list[str]]) -> str:
    """How a scenario file and the core's answers differ; empty: they do not."""
    expected = path.read_text(encoding="utf-8")
    actual = replay(expected, run)
    if actual == expected:
        return ""
    changes = "\n".join(difflib.unified_diff(expected.splitlines(), actual.splitlines(), "file", "core", n=2))
    return f"{path.name} tells another story than the core:\n{changes}\n\nThe core's whole answer:\n{actual}"


def value(text: str) -> int | float | str | list[Any]:
    """A number, a list or a word, as a command's option says it."""
    if text.startswith("["):
        return list(json.loads(text))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
