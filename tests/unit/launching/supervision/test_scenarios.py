"""Replays the scenario files about the launcher's supervision. A file's text is the expected result."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import scenarios, supervision_scenarios

FILES = scenarios.named("supervision")


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 12


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_launcher_does(path: Path) -> None:
    if difference := scenarios.difference(path, supervision_scenarios.Scenario().run):
        pytest.fail(difference)
