"""A strategy of somebody's own in a whole job: workers take steps of their own and meet in every fifth."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import served_script
from support.launcher import leftovers, shoal
from support.served_script import assert_each_sample_once, events_of, result

OWN_STRATEGY = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import shoal.entry.shoal_main
from support.local_steps import LocalSteps
shoal.entry.shoal_main.make_strategy = lambda replica, config, servers=None: LocalSteps(replica, 5)
"""


@pytest.mark.parametrize("chaos", ["kill worker at step 12", pytest.param("", marks=pytest.mark.long)])
def test_each_sample_counts_once_whoever_is_killed_in_a_round(chaos: str, tmp_path: Path) -> None:
    served_script.write(tmp_path, pause=0.02 if chaos else 0.0)
    script = tmp_path / "script.py"
    script.write_text(OWN_STRATEGY + script.read_text())
    options = ("--chaos", chaos) if chaos else ()
    outcome = shoal(tmp_path, "run", "-n", "3", "--run-dir", "run", *options, "script.py")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert leftovers(tmp_path) == []
    assert_each_sample_once(result(tmp_path))
    deaths = [event for event in events_of(tmp_path / "run") if event["kind"] == "worker-died"]
    assert len(deaths) == bool(chaos)
