"""Programs that train on a table of a cluster. Their model counts how often each row is used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from shoal.data.tables.part_writing import MARKER
from shoal.data.tables.rows_written import RowsWritten
from shoal.events import StepsApplied, WorkerDied, WorkerEquipped
from support.launcher import PATIENCE, events_in

ROWS = 600
PARTS = 6

# `train` for a table with the columns `id` and `value`, and what programs say about calls that are refused.
COUNTING = """
import time

import torch

import shoal
from shoal.errors import ShoalError

ROWS = 600


def train(run, data, pause):
    uses = torch.nn.Embedding(ROWS, 1, dtype=torch.float64)
    torch.nn.init.zeros_(uses.weight)
    model = run.model(uses)
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for rows in run.batches(data, batch_size=4, epochs=1):
        time.sleep(pause)
        (-model(rows["id"]).mean() + 0 * rows["value"].mean()).backward()
        model.weight.grad *= (model.weight.grad != 0).sum()
        optimizer.step()
        optimizer.zero_grad()
    if run.is_first:
        found = model.weight.detach().flatten()
        print("rows used once:", int(((found - 1).abs() < 1e-6).sum()))


def other(run, table):
    raise NotImplementedError


def refused(call):
    try:
        call()
    except ShoalError as error:
        print("refused:", error)
    else:
        print("not refused")
"""


def start(folder: Path, program: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """A program in `folder`, with its pipes as text."""
    (folder / "program.py").write_text(COUNTING + program)
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "program.py", *words],
        cwd=folder,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    """What the program has printed, once it has ended well."""
    try:
        stdout, stderr = process.communicate(timeout=4 * PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, stdout + stderr
    return stdout


def refusals(stdout: str) -> list[str]:
    assert "not refused" not in stdout
    return [line.removeprefix("refused: ") for line in stdout.splitlines() if line.startswith("refused: ")]


def until_steps(run_dir: Path, program: subprocess.Popen[str], steps: int = 3) -> None:
    limit = time.monotonic() + 4 * PATIENCE
    while not any(isinstance(one, StepsApplied) and one.step >= steps for one in events_in(run_dir)):
        if program.poll() is not None or time.monotonic() > limit:
            program.kill()
            raise AssertionError((program.communicate(), events_in(run_dir)))
        time.sleep(0.1)


def nodes_of(run_dir: Path) -> dict[int, str]:
    return {event.worker: event.node for event in events_in(run_dir) if isinstance(event, WorkerEquipped)}


def deaths(run_dir: Path) -> list[WorkerDied]:
    return [event for event in events_in(run_dir) if isinstance(event, WorkerDied)]


def marker_in(folder: Path) -> RowsWritten:
    return msgspec.json.decode((folder / MARKER).read_bytes(), type=RowsWritten)


def size_of(folder: Path) -> int:
    """Bytes of the Parquet files."""
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))
