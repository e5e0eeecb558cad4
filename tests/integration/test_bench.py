"""`shoal bench`: runs, compares with torch's own, and writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

from support.launcher import shoal


def test_training_benchmark_compares_with_ddp_in_one_run(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "bench", "training", "--rounds", "1", "--steps", "1", "--json", "found.json")
    assert outcome.code == 0, outcome.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"mlp", "transformer"}
    for result in found.values():
        assert set(result["median"]) == {"shoal", "ddp", "ddp-static", "no exchange"}
        assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in result["seconds"].values())
    assert "of DDP" in outcome.stdout


def test_an_unknown_option_of_a_benchmark_is_one_line(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "bench", "training", "--round", "1")
    assert outcome.code == 2
    assert (
        outcome.stderr
        == "shoal: error: there is no option --round; did you mean '--rounds'? (see `shoal bench training --help`)\n"
    )
