"""Predictions for clusters that nobody has: they add up, react as they should, and say what they assume."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.cli.simulate import main
from shoal.errors import UsageError
from shoal.plan.cluster_plan import (
    Assumptions,
    ClusterPlan,
    best_interval,
    bits_of,
    bytes_of,
    duration,
    restart_goodput,
    seconds_of,
)
from shoal.plan.prediction import predict

HOUR = 3600.0
PLAN = ClusterPlan(nodes=60, mtbf=6 * HOUR, state=1e10)


@pytest.mark.parametrize("nodes", [1, 2, 60, 300])
def test_all_of_the_time_is_accounted_for(nodes: int) -> None:
    found = predict(dataclasses.replace(PLAN, nodes=nodes, mtbf=nodes * 90.0, checkpoint_every=10.0))
    assert found.failures > 10
    assert found.useful + sum(found.lost.values()) == pytest.approx(HOUR, rel=1e-6)
    assert all(seconds >= 0 for seconds in found.lost.values())
    assert not found.end


def test_nodes_that_never_fail_lose_nothing_but_checkpoints() -> None:
    found = predict(dataclasses.replace(PLAN, mtbf=1e12))
    assert found.failures == 0
    assert found.generations == 1
    assert found.goodput > 0.999


def test_more_failures_and_slower_links_cost_more() -> None:
    base = predict(PLAN).goodput
    assert predict(dataclasses.replace(PLAN, mtbf=HOUR)).goodput < base
    assert predict(dataclasses.replace(PLAN, link=1e9)).goodput < base


def test_spares_save_the_time_until_replacements_come() -> None:
    slow = dataclasses.replace(PLAN, restart=600.0, state=1e8)
    without, with_spares = predict(slow), predict(dataclasses.replace(slow, spares=10))
    assert with_spares.lost["missing"] < without.lost["missing"] / 5
    assert with_spares.goodput > without.goodput


def test_losing_the_only_node_goes_back_to_the_checkpoint() -> None:
    found = predict(ClusterPlan(nodes=1, mtbf=600.0, checkpoint_every=60.0))
    assert found.restores > 0
    assert found.lost["redone"] > 0


def test_the_same_seed_gives_the_same_prediction() -> None:
    assert predict(PLAN) == predict(PLAN)
    assert predict(PLAN) != predict(dataclasses.replace(PLAN, seed=1))


def test_restarting_everything_follows_dalys_formula() -> None:
    assumed = Assumptions()
    rare = dataclasses.replace(PLAN, nodes=1, mtbf=1e6, restart=0.0, state=1.0)
    assert restart_goodput(rare, assumed, 600.0) == pytest.approx(1.0, abs=0.001)
    best = best_interval(PLAN, assumed)
    goodput = restart_goodput(PLAN, assumed, best)
    assert goodput > restart_goodput(PLAN, assumed, 4 * best)
    assert goodput > restart_goodput(PLAN, assumed, best / 4)
    assert restart_goodput(dataclasses.replace(PLAN, mtbf=1.0), assumed, 600.0) == 0.0


def test_quantities_as_people_write_them() -> None:
    assert seconds_of("6h", named="--mtbf") == 6 * HOUR
    assert seconds_of("1.5 min", named="--mtbf") == 90.0
    assert bytes_of("10GB", named="--state") == 1e10
    assert bits_of("10Gbit", named="--link") == 1e10
    for text in ("", "6", "h", "-6h", "6 weeks", "1e3s", "nan s"):
        with pytest.raises(UsageError, match="--mtbf is"):
            seconds_of(text, named="--mtbf")
    assert [duration(seconds) for seconds in (0.0021, 21.6, 90, 6 * HOUR)] == ["2.1 ms", "21.6 s", "1.5 min", "6 h"]


def test_the_command_prints_and_writes_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert main(["--nodes", "20", "--mtbf", "1h", "--state", "10GB", "--link", "10Gbit", "--json", str(file)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("20 nodes for 1 h")
    for words in ("goodput", "where the rest of the time went", "Young/Daly formula", "assumed", "every 3 min"):
        assert words in told
    found = json.loads(file.read_text())
    assert f"{found['prediction']['goodput']:.1%}" in told
    assert found["cluster"]["nodes"] == 20
    assert len(found["restart_everything"]) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], texts.option_missing("nodes")),
        (["--nodes", "5"], texts.option_missing("mtbf")),
        (["--nodes", "0", "--mtbf", "6h"], "--nodes is 0"),
        (["--nodes", "20000", "--mtbf", "6h"], "--nodes is 20000"),
        (["--nodes", "many", "--mtbf", "6h"], "--nodes is 'many'"),
        (["--nodes", "5", "--mtbf", "0h"], "--mtbf is 0"),
        (["--nodes", "5", "--mtbf", "soon"], "--mtbf is 'soon'"),
        (["--nodes", "5", "--mtbf", "6h", "--link", "10GB"], "--link is '10GB'"),
        (["--nodes", "5", "--mtbf", "6h", "--hours", "0"], "--hours is 0"),
        (["--nodes", "5", "--mtbf", "6h", "--spares", "-1"], "--spares is -1"),
        (["--replay", "3", "--nodes", "5"], texts.replay_and_more("nodes")),
        (["--node", "5"], "did you mean '--nodes'"),
    ],
)
def test_mistakes_name_the_option(arguments: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        main(arguments)


def test_a_replay_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "0"]) == 0
    assert "generation-formed" in capsys.readouterr().out
