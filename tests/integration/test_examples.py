"""The examples, as a user runs them, with small settings."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.events import JobEnded, Record, StopAgreed
from support.launcher import shoal

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "count_samples.py": ("--epochs", "2", "--batch", "64"),
    "digits.py": ("--epochs", "1", "--batch", "8"),
    "early_stopping.py": ("--epochs", "2", "--batch", "64"),
    "gpt.py": ("--steps", "4", "--bytes", "60000", "--width", "32", "--layers", "1", "--context", "32"),
    "torch_ddp.py": ("--steps", "4", "--width", "32"),
}
SAYS = {
    "count_samples.py": r"1,437 samples, each used exactly 2 times",
    "digits.py": r"held-out accuracy \d+\.\d%",
    "early_stopping.py": r"epoch 1: held-out accuracy \d+\.\d%, the best so far",
    "gpt.py": r"held-out loss \d\.\d+ nats per byte after 4 steps",
    "torch_ddp.py": r"loss \d\.\d+ after 4 steps on \d rank",
}
SAVES = {"digits.py": "digits.pt"}  # where it is asked to
SAVING = {"early_stopping.py"}  # without being asked: the best state
PLAIN = {"torch_ddp.py"}  # of torch alone: there are no steps of ours to sum up


def examples_but(*late: str) -> list[Any]:
    """All of them; these in the long run only."""
    return [pytest.param(name, marks=[pytest.mark.long] if name in late else []) for name in SMALL]


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", examples_but("count_samples.py", "early_stopping.py", "gpt.py", "torch_ddp.py"))
def test_example_on_two_workers(tmp_path: Path, name: str) -> None:
    saves = ("--save", SAVES[name]) if name in SAVES else ()
    outcome = shoal(tmp_path, "run", "-n", "2", str(EXAMPLES / name), *SMALL[name], *saves)
    assert outcome.code == 0, outcome.stderr
    assert {path.name for path in tmp_path.glob("*.p*t")} == set(saves[1:])
    assert len(re.findall(SAYS[name], outcome.stdout)) == 1
    assert ("finished" in outcome.stdout) is (name not in PLAIN)


@pytest.mark.parametrize("name", examples_but("digits.py", "early_stopping.py", "gpt.py", "torch_ddp.py"))
def test_example_in_one_process_without_a_coordinator(tmp_path: Path, name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout)
    left = [path.name for path in tmp_path.iterdir()]
    assert left == (["runs"] if name in SAVING else []), "a script that runs alone leaves what it is asked to save"


@pytest.mark.long
def test_the_demo_reaches_its_accuracy(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "run", "-n", "4", str(EXAMPLES / "digits.py"))
    accuracies = [float(found) for found in re.findall(r"held-out accuracy (\d+\.\d)%", outcome.stdout)]
    assert len(accuracies) == 5
    assert accuracies[-1] >= 92.5
    assert re.search(r"compute\s+communication\s+waiting", outcome.stdout)


@pytest.mark.long
def test_the_demo_kills_a_worker_and_every_sample_is_used_exactly_once_per_epoch(tmp_path: Path) -> None:
    makefile = (EXAMPLES.parent / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^demo:.*\n\t\$\(BIN\)/shoal (run .*)$", makefile, re.MULTILINE)
    assert found is not None
    command = [word.replace("examples/", f"{EXAMPLES}/") for word in shlex.split(found[1])]
    outcome = shoal(tmp_path, *command)
    assert outcome.code == 0, outcome.stderr
    assert re.search(r"^fault on purpose: kill worker \d ", outcome.stdout, re.MULTILINE)
    assert re.search(r"^training goes on at step \d+ after", outcome.stdout, re.MULTILINE)
    assert "1,437 samples, each used exactly 5 times" in outcome.stdout


@pytest.mark.long
def test_early_stopping_ends_the_job_with_its_reason_in_the_record(tmp_path: Path) -> None:
    script = str(EXAMPLES / "early_stopping.py")
    outcome = shoal(tmp_path, "run", "-n", "2", "--run-dir", "kept", script, "--patience", "1", "--batch", "64")
    assert outcome.code == 0, outcome.stderr
    lines = (tmp_path / "kept" / "events.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=Record).event for line in lines]
    agreed, ended = next(event for event in events if isinstance(event, StopAgreed)), events[-1]
    assert isinstance(ended, JobEnded)
    assert (ended.outcome, ended.exit_code, ended.reason) == ("stopped", 0, agreed.reason)
    assert re.fullmatch(r"held-out accuracy does not get above \d+\.\d% \(patience 1\)", ended.reason)
    steps = [msgspec.json.decode(line) for line in (tmp_path / "kept" / "metrics.jsonl").read_bytes().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, agreed.step + 1))
    assert all(step["values"]["loss"] > 0 and step["seconds"] > 0 for step in steps)
    assert sum(step["samples"] for step in steps) % 1437 == 0
