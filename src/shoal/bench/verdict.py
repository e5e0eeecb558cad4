"""The verdict of every benchmark: bounds, whether each holds, the lines for people, the JSON file, the exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Rule = Literal["at least", "at most", "below"]


@dataclass(frozen=True)
class Bound:
    what: str
    found: float
    rule: Rule
    limit: float
    remark: str = ""  # such as in which case the worst was found

    @property
    def holds(self) -> bool:
        match self.rule:
            case "at least":
                return self.found >= self.limit
            case "at most":
                return self.found <= self.limit
            case "below":
                return self.found < self.limit

    def __str__(self) -> str:
        remark = f" ({self.remark})" if self.remark else ""
        outcome = "holds " if self.holds else "MISSED"
        return f"  {outcome} {self.what}: {self.found:.3f}, {self.rule} {self.limit:.3f}{remark}"


def table(bounds: Sequence[Bound]) -> str:
    return "\n".join(map(str, bounds))


def exit_code(bounds: Sequence[Bound]) -> int:
    return 0 if all(bound.holds for bound in bounds) else 1


def as_json(bounds: Sequence[Bound]) -> list[dict[str, object]]:
    return [{**vars(bound), "holds": bound.holds} for bound in bounds]


def write(path: str | None, results: Mapping[str, object]) -> None:
    """Write what was measured to the file that `--json` names, if it names one."""
    if path:
        Path(path).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
