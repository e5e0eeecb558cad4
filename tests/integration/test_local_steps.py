"""A strategy of an installed package in a whole job: workers take steps of their own and meet in every fifth."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import served_script
from support.launcher import leftovers, shoal
from support.offers import offer
from support.served_script import assert_each_sample_once, events_of, result


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "support.local_steps_settings:LOCAL_STEPS"
    monkeypatch.setenv("PYTHONPATH", offer(tmp_path / "site", "shoal.strategies", local_steps=place))


@pytest.mark.parametrize("chaos", ["kill worker at step 12", pytest.param("", marks=pytest.mark.long)])
@pytest.mark.long
def test_each_sample_counts_once_whoever_is_killed_in_a_round(chaos: str, tmp_path: Path) -> None:
    served_script.write(tmp_path, pause=0.02 if chaos else 0.0)
    options = ("--chaos", chaos) if chaos else ()
    chosen = ("--strategy", "local-steps", "--mean-every", "5")
    outcome = shoal(tmp_path, "run", "-n", "3", "--run-dir", "run", *chosen, *options, "script.py")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert leftovers(tmp_path) == []
    assert_each_sample_once(result(tmp_path))
    events = events_of(tmp_path / "run")
    assert len([event for event in events if event["kind"] == "worker-died"]) == bool(chaos)
    assert [event["strategy"] for event in events if event["kind"] == "job-started"] == ["local-steps"]
    assert "mean-every = 5\n" in (tmp_path / "run" / "config.toml").read_text()


def test_what_the_strategy_refuses_is_said_before_anything_starts(tmp_path: Path) -> None:
    served_script.write(tmp_path, pause=0.0)
    for options, words in {
        ("--strategy", "local-step"): "did you mean 'local-steps'?",
        ("--strategy", "gossip"): "--strategy is 'gossip'; there is all-reduce, parameter-server, local-steps",
        ("--strategy", "local-steps", "--mean-every", "0"): "--mean-every is 0; it should be from 1",
        ("--mean-every", "5"): "--mean-every 5 is for another strategy than all-reduce",
        ("--strategy", "local-steps", "--servers", "2"): "--servers 2 is for --strategy parameter-server",
    }.items():
        outcome = shoal(tmp_path, "run", "-n", "2", "--run-dir", "run", *options, "script.py")
        assert outcome.code == 2 and words in outcome.stderr, outcome.stderr
        assert not (tmp_path / "run").exists()
