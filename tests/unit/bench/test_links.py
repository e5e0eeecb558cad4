"""`shoal bench links`: real processes measure each other, and the matrix is printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.bench import texts
from shoal.bench.links import command
from shoal.cli.main import main
from shoal.errors import ScriptFailed
from shoal.links.matrix import Link, LinkMatrix


def test_the_matrix_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "links.json"
    assert main(["bench", "links", "-n", "3", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["workers"] == 3
    for kind in ("latency_us", "bandwidth_gb_s"):
        assert [len(row) for row in found[kind]] == [3, 3, 3]
        assert all(found[kind][a][b] > 0 for a in range(3) for b in range(3) if a != b)
    assert sorted(found["ring_order"]) == [0, 1, 2]
    assert found["all_reduce"]["0"] in found["reason"]
    assert "latency, us" in shown and "bandwidth, GB/s" in shown
    assert found["reason"] in shown


def test_from_is_down_and_to_is_across() -> None:
    rows = tuple(tuple(Link(1e-6 * (10 * a + b), 1e-9 / (1 + a)) for b in range(2)) for a in range(2))
    lines = [line.split() for line in command.table(LinkMatrix(rows))]
    assert lines[2:4] == [["0", "-", "1.0"], ["1", "10.0", "-"]]
    assert lines[6:8] == [["0", "-", "1.00"], ["1", "2.00", "-"]]


@pytest.mark.parametrize("workers", ["0", "1", "1000"])
def test_links_need_two_processes(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "links", "-n", workers]) == 2
    assert texts.bad_workers(int(workers), 256) in capsys.readouterr().err


def test_a_process_that_fails_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys\nsys.stdin.readline()\nsys.exit(9)\n")
    monkeypatch.setattr(command, "WORKER", broken)
    with pytest.raises(ScriptFailed, match="exit code 9"):
        command.measured(2)
