"""Decisions rest on a clock that never jumps; the wall clock is for the record alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoal.membership

PACKAGE = Path(shoal.membership.__file__).parent
# Records carry the time of day, for people.
MAY_READ_THE_WALL_CLOCK = {"worker_clocks.py": ["time.time"]}
STEADY = ("time.monotonic", "time.sleep", "time.perf_counter", "time.clock_gettime", "time.CLOCK_BOOTTIME")
PURE_ROOMS = ("core", "generations", "verdicts", "member")
PURE_RECORDS = ("bookkeeping", "metrics", "standstills", "thinning")
PURE = (
    *(path for room in PURE_ROOMS for path in sorted((PACKAGE / room).glob("*.py"))),
    *(PACKAGE / "record" / f"{name}.py" for name in PURE_RECORDS),
)


def reads_of_time(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name.startswith(("time.", "datetime.")):
                found.append(name)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_only_the_record_reads_the_wall_clock(path: Path) -> None:
    wall = [name for name in reads_of_time(path) if name not in STEADY]
    assert wall == MAY_READ_THE_WALL_CLOCK.get(path.name, [])


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_decisions_read_no_clock_at_all(path: Path) -> None:
    assert reads_of_time(path) == []
