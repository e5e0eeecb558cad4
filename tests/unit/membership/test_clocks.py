"""Decisions rest on a clock that never jumps; the wall clock is for the record alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoal.membership

PACKAGE = Path(shoal.membership.__file__).parent
# Records carry the time of day, for people.
MAY_READ_THE_WALL_CLOCK = {"coordinator.py": ["time.time"]}
STEADY = ("time.monotonic", "time.sleep", "time.perf_counter", "time.clock_gettime", "time.CLOCK_BOOTTIME")
PURE = (
    *("core", "generations", "forming", "regrouping", "liveness", "verdicts", "ending", "publishing", "failures"),
    *("bookkeeping", "metrics", "standstills", "thinning"),
)


def reads_of_time(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name.startswith(("time.", "datetime.")):
                found.append(name)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_record_reads_the_wall_clock(path: Path) -> None:
    wall = [name for name in reads_of_time(path) if name not in STEADY]
    assert wall == MAY_READ_THE_WALL_CLOCK.get(path.name, [])


@pytest.mark.parametrize("name", PURE)
def test_decisions_read_no_clock_at_all(name: str) -> None:
    assert reads_of_time(PACKAGE / f"{name}.py") == []
