"""Replays every scenario file against the membership core. The file's text is the expected result."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from support.membership import replay

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("membership_*.txt"))


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    actual = replay(expected)
    if actual != expected:
        difference = "\n".join(difflib.unified_diff(expected.splitlines(), actual.splitlines(), "file", "core", n=2))
        pytest.fail(
            f"{path.name} tells another story than the core:\n{difference}\n\nThe core's whole answer:\n{actual}"
        )
