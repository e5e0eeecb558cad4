"""Replays every scenario file against the membership core. The file's text is the expected result."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import scenarios
from support.membership import Scenario

SCENARIOS = scenarios.named("membership")


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    if difference := scenarios.difference(path, Scenario().run):
        pytest.fail(difference)
