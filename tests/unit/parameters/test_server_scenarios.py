"""Replays the scenario files about the ledger, its sequencer and the keeper. A file's text is the expected result."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import keeper_scenarios, ledger_scenarios, scenarios

LEDGER = scenarios.named("ledger", "sequencer")
KEEPER = scenarios.named("keeper")


def test_there_are_scenarios() -> None:
    assert len(LEDGER) >= 10
    assert len(KEEPER) >= 10


@pytest.mark.parametrize("path", LEDGER, ids=lambda path: path.stem)
def test_what_servers_and_workers_are_told_by_the_ledger(path: Path) -> None:
    if difference := scenarios.difference(path, ledger_scenarios.Scenario().run):
        pytest.fail(difference)


@pytest.mark.parametrize("path", KEEPER, ids=lambda path: path.stem)
def test_what_servers_and_workers_are_told_by_the_keeper(path: Path) -> None:
    if difference := scenarios.difference(path, keeper_scenarios.Scenario().run):
        pytest.fail(difference)
