"""The examples, as a user runs them, with small settings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.launcher import shoal

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits.py": ("--epochs", "1", "--batch", "8"),
    "gpt.py": ("--steps", "4", "--bytes", "60000", "--width", "32", "--layers", "1", "--context", "32"),
}
SAYS = {"digits.py": r"held-out accuracy \d+\.\d%", "gpt.py": r"held-out loss \d\.\d+ nats per byte after 4 steps"}


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_example_on_two_workers(tmp_path: Path, name: str) -> None:
    outcome = shoal(tmp_path, "run", "-n", "2", str(EXAMPLES / name), *SMALL[name])
    assert outcome.code == 0, outcome.stderr
    assert len(re.findall(SAYS[name], outcome.stdout)) == 1
    assert "finished" in outcome.stdout


@pytest.mark.parametrize("name", SMALL)
def test_example_in_one_process_without_a_coordinator(tmp_path: Path, name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout)
    assert list(tmp_path.iterdir()) == [], "a script that runs alone leaves nothing on disk"


def test_the_demo_reaches_its_accuracy(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "run", "-n", "4", str(EXAMPLES / "digits.py"))
    accuracies = [float(found) for found in re.findall(r"held-out accuracy (\d+\.\d)%", outcome.stdout)]
    assert len(accuracies) == 5
    assert accuracies[-1] >= 92.5
    assert re.search(r"compute\s+communication\s+waiting", outcome.stdout)
