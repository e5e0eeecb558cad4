"""Disks that are full or read-only for a while: training goes on, the loss is said, the next try is made.

The disk is a small one of its own, in a mount namespace that ends with the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.launcher import PATIENCE, leftovers

SCRIPT = """
import os, subprocess, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import shoal

def settle(run):
    "Wait until no checkpoint is on its way, on this worker."
    run._session.saver.wait()

def spoil(run):
    if run.is_first:
        SPOIL

def mend(run):
    if run.is_first:
        MEND

def train(run):
    model = run.model(nn.Linear(100, 200))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    for (x,) in run.batches(TensorDataset(torch.randn(64, 100)), batch_size=1):
        settle(run)
        if run.step == 10:
            spoil(run)
        if run.step == 20:
            mend(run)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if run.is_first:
        print("steps", run.step, flush=True)

if __name__ == "__main__":
    shoal.main(train)
"""
FAULTS = {
    "full": (
        # To the last byte, whatever others write meanwhile.
        "subprocess.run(['dd', 'if=/dev/zero', 'of=disk/filler', 'bs=4k'], stderr=subprocess.DEVNULL, check=False)",
        "os.unlink('disk/filler')",
        "No space left on device",
    ),
    "read-only": (
        "subprocess.run(['mount', '-o', 'remount,ro', 'disk'], check=True)",
        "subprocess.run(['mount', '-o', 'remount,rw', 'disk'], check=True)",
        "Read-only file system",
    ),
}


def run_on_small_disk(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A job whose checkpoints go to a disk of 2 MB under `disk`; a checkpoint of the script has about 160 kB."""
    (folder / "disk").mkdir()
    (folder / "runtime").mkdir()
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    job = [sys.executable, "-m", "shoal", "run", "-n", "2", *options, "script.py"]
    inside = 'mount -t tmpfs -o size=2m tmpfs disk && "$@"; code=$?; cp -r disk kept; exit $code'
    return subprocess.run(
        ["unshare", *as_root, "--mount", "sh", "-c", inside, "sh", *job],
        cwd=folder,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def events(folder: Path, kind: str, *, run: str = "run") -> list[dict[str, Any]]:
    lines = (folder / run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in (json.loads(line)["event"] for line in lines) if event["kind"] == kind]


@pytest.mark.long
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_training_goes_on_and_the_next_try_is_made(fault: str, tmp_path: Path) -> None:
    spoil, mend, reason = FAULTS[fault]
    (tmp_path / "script.py").write_text(SCRIPT.replace("SPOIL", spoil).replace("MEND", mend))
    options = ("--run-dir", "run", "--checkpoint-to", "disk", "--checkpoint-every", "4", "--keep-checkpoints", "2")
    done = run_on_small_disk(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps 32" in done.stdout
    lost = [(event["step"], event["reason"]) for event in events(tmp_path, "checkpoint-lost")]
    assert [step for step, _ in lost] == [12, 16, 20]
    assert all(reason in text for _, text in lost)
    assert f"{reason}" in done.stdout
    published = events(tmp_path, "checkpoint-published")
    assert [event["step"] for event in published] == [4, 8, 24, 28, 32]
    assert [event["removed"] for event in published[:3]] == [[], [], ["step-00000004-g1"]]
    kept = sorted(path.name for path in (tmp_path / "kept" / "run").iterdir())
    assert kept == ["step-00000028-g1", "step-00000032-g1"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert reason in page
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_disk_that_never_works_costs_only_the_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("SPOIL", "pass").replace("MEND", "pass"))
    (tmp_path / "not-a-folder").write_text("")
    options = ("--run-dir", "run", "--checkpoint-to", "not-a-folder/x", "--checkpoint-every", "10")
    done = run_on_small_disk(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Not a directory" in done.stdout
    assert events(tmp_path, "checkpoint-published") == []
    assert [event["step"] for event in events(tmp_path, "checkpoint-lost")] == [10, 20, 30, 32]


@pytest.mark.long
def test_a_run_directory_on_a_disk_that_was_full_for_a_while_has_the_whole_record(tmp_path: Path) -> None:
    spoil, mend, reason = FAULTS["full"]
    # Long names of values make the record grow beyond the page that it has on the disk already.
    logging = "run.log(**{f'value of a rather long name {n}': 1.0 for n in range(40)})"
    text = (
        SCRIPT.replace("SPOIL", spoil).replace("MEND", mend).replace("optimizer.step()", f"optimizer.step(); {logging}")
    )
    (tmp_path / "script.py").write_text(text)
    done = run_on_small_disk(tmp_path, "--run-dir", "disk/run", "--checkpoint-every", "2", "--keep-checkpoints", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    lost = [event["reason"] for event in events(tmp_path, "checkpoint-lost", run="kept/run")]
    assert lost and all(reason in text for text in lost)
    assert events(tmp_path, "job-ended", run="kept/run")[0]["outcome"] == "finished"
    lines = (tmp_path / "kept" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 33))
