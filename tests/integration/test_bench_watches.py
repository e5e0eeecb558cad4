"""The benchmark of the watches runs and judges everything that it is to judge; its times are nobody's business here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_watches.py"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tiny_benchmark_of_the_watches_measures_everything(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--tiny"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stderr
    compared, *judged, _ = done.stdout.splitlines()
    assert compared.startswith("comparing the data of two workers: ")
    assert [line.partition(":")[0] for line in judged] == [
        "a step",
        "a step of two workers, in loops of 10",
        "a file that is read",
        "a file that is emptied, the first time",
        "a file that is emptied again",
        "a file of safetensors, the first time",
    ], done.stdout + done.stderr
