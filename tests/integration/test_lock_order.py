"""Threads take locks in the order in which `docs/design.md` lists them: recorded in real jobs, through a death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import served_script
from support.design import rows
from support.launcher import shoal

RECORDING = Path(__file__).parents[1] / "support" / "locking"
SERVERS = ("--strategy", "parameter-server", "--servers", "2", "--consistency", "asynchronous")


@pytest.mark.long
@pytest.mark.parametrize("strategy", [(), SERVERS], ids=["all-reduce", "parameter servers"])
def test_locks_are_taken_in_the_order_of_the_design(tmp_path: Path, strategy: tuple[str, ...]) -> None:
    served_script.write(tmp_path, pause=0.02)
    (tmp_path / "locks").mkdir()
    recorded = {"LOCKS_FOLDER": str(tmp_path / "locks"), "PYTHONPATH": str(RECORDING)}
    common = ("--progress", "plain", "--threads", "1", "--run-dir", "run", "--checkpoint-every", "5")
    done = shoal(
        tmp_path, "run", "-n", "2", *common, *strategy, "--chaos", "kill worker at step 10", "script.py",
        variables=recorded, patience=100,
    )  # fmt: skip
    assert done.code == 0, done
    pairs = {
        (line["outer"], line["inner"])
        for path in (tmp_path / "locks").iterdir()
        for line in map(json.loads, path.read_text().splitlines())
    }
    assert pairs, "no lock was taken while another was held: is anything recorded?"
    order = [row[0].strip("`") for row in rows("lock")]
    wrong = [(outer, inner) for outer, inner in pairs if order.index(outer) > order.index(inner)]
    assert not wrong
