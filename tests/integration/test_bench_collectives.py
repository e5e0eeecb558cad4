"""`shoal bench collectives`: gloo and Shoal in turns in the same processes, judged and written down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from shoal.bench import texts
from shoal.bench.collectives.command import COLLECTIVES
from support.launcher import shoal


@pytest.mark.long
def test_every_collective_is_measured_by_both_and_judged(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, *("bench", "collectives", "-n", "2", "--sizes", "4k", "--quick", "--json", "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert outcome.code == (0 if all(bound["holds"] for bound in found["bounds"]) else 1), outcome.stderr
    assert [each["collective"] for each in found["measurements"]] == list(COLLECTIVES)
    for each in found["measurements"]:
        libraries = {name.split()[0] for name in each["seconds"]}
        assert libraries == {"gloo", "shoal"}
        assert all(value > 0 for values in each["seconds"].values() for value in values)
    for name in ("reduce-scatter", "all-gather"):
        (each,) = [each for each in found["measurements"] if each["collective"] == name]
        assert set(each["seconds"]) == {"gloo tensor", "gloo list", "shoal tensor", "shoal list"}
    assert [line.split()[0] in ("holds", "MISSED") for line in outcome.stdout.splitlines()[-2:]] == [True, True]


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "bench", "collectives", "--deepspeed")
    assert outcome.code == 2
    assert texts.NO_DEEPSPEED in outcome.stderr


@pytest.mark.long
@pytest.mark.timeout(300)  # seconds: a fixed amount of work, and a second look at what a busy machine disturbed
def test_between_namespaces_a_plain_socket_is_measured_too_and_nothing_stays(tmp_path: Path) -> None:
    outcome = shoal(
        tmp_path,
        *("bench", "collectives", "-n", "2", "--only", "barrier", "--quick", "--namespaces", "--json", "found.json"),
        patience=240.0,
    )
    assert outcome.code in (0, 1), outcome.stderr
    found = json.loads((tmp_path / "found.json").read_text())["measurements"]
    shaped = [each for each in found if each["where"] == "two machines at 1 Gbit"]
    assert len(shaped) == 3
    for each in shaped:
        seconds = min(each["seconds"]["shoal"])
        trips = 2 if each["collective"] == "send" else 1
        assert trips * each["bytes"] / seconds < 1.05 * 125e6  # no faster than the link: nothing went around it
        assert "socket" in each["seconds"]
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "shoal-" not in listed
