"""`shoal bench checkpoint`: what a checkpoint costs training, against torch.save and torch's distributed checkpoint (DCP).

Runs real jobs: one worker on all cores that saves with every method in turns, one worker per method for its memory, and
two workers that make checkpoints by the clock for the throughput. What the figures mean for the bounds is in
`bench_checkpoint_verdict`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.cli import bench_checkpoint_verdict as verdict
from shoal.cli.launch import launch
from shoal.cli.options import Parser
from shoal.errors import Interrupted, ScriptFailed, UsageError
from shoal.events import CheckpointLost, CheckpointPublished, CheckpointStarted, Record

WORKER = Path(__file__).with_name("bench_checkpoint_worker.py")
BATCH = 64  # per worker
MEASURED = ("shoal", "torch.save", "DCP", "async DCP", "async DCP, thread", "async DCP, process")  # for their memory
UNCOUNTED = 2  # checkpoints of the throughput job: one before the first pair, one after the last


@dataclass(frozen=True)
class Bench:
    """Where and how large; starts the jobs."""

    folder: Path
    size_mb: float

    def job(self, name: str, *arguments: str, **settings: object) -> tuple[dict[str, Any], list[Record]]:
        """What the script found, and the job's events."""
        run_dir, results = self.folder / f"run-{name}", self.folder / f"{name}.json"
        # fmt: off
        code = launch(
            WORKER, name.partition("-")[0], "--results", str(results), "--folder", str(self.folder),
            "--size-mb", str(self.size_mb), "--batch", str(BATCH), *arguments,
            run_dir=str(run_dir), progress="none", keep_checkpoints=1, **settings,
        )
        # fmt: on
        if code == Interrupted.exit_code:
            raise Interrupted("the benchmark was interrupted")
        if code != 0 or not results.exists():
            raise ScriptFailed(f"the benchmark's job {name} ended with exit code {code}")
        lines = (run_dir / "events.jsonl").read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=Record) for line in lines]
        for record in events:
            if isinstance(record.event, CheckpointLost):
                raise ScriptFailed(
                    f"the benchmark's checkpoint {record.event.checkpoint} is lost: {record.event.reason}"
                )
        return json.loads(results.read_text(encoding="utf-8")), events


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    try:
        place = Path(options.to)
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".shoal-bench-", dir=place) as folder:
            found = _measure(Bench(Path(folder).resolve(), options.size_mb), options)
    except OSError as error:
        raise UsageError(f"--to is {options.to!r}, which cannot be written: {error.strerror or error}") from None
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench checkpoint")
    parser.add_argument("--size-mb", type=float, default=400, help="parameters and Adam's state, in megabytes (400)")
    parser.add_argument("--turns", type=int, default=10, help="saves with each method; medians are over these (10)")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of windows, with and without a checkpoint (10)")
    parser.add_argument("--window", type=float, default=10, help="seconds of such a window (10)")
    parser.add_argument("--to", default=".", help="folder to save to, in one that is removed again (.)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    for name in ("size_mb", "turns", "pairs", "window"):
        if not getattr(options, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it should be above 0")
    return options


def _measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": _machine(bench.folder)}
    print(f"{found['machine']}\nblocked and total seconds, 1 worker on all cores:", flush=True)
    found["saves"], _ = bench.job("saves", "--count", str(options.turns), workers=1)
    print("memory, a fresh process for each:", flush=True)
    found["memory"] = {}
    for number, name in enumerate(MEASURED):
        print(f"  {name}", flush=True)
        found["memory"][name], _ = bench.job(f"memory-{number}", "--method", name, workers=1)
    print(f"throughput, 2 workers, {options.pairs} pairs of {options.window:g} s:", flush=True)
    ends, events = bench.job(
        "throughput",
        *("--count", str(options.pairs + UNCOUNTED)),
        workers=2,
        checkpoint_every=f"{2 * options.window:.6f}s",
    )
    found["throughput"] = _throughput(ends["ends"], events, options)
    text, found["bounds"] = verdict.judge(found)
    print(text, flush=True)
    return found


def _throughput(ends: list[float], events: list[Record], options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoints begin two windows apart: the first half of the time between two has one, the second half none."""
    happened = [record.event for record in events]
    begun = [event.step for event in happened if isinstance(event, CheckpointStarted)][: options.pairs + UNCOUNTED]
    took = {event.step: event for event in happened if isinstance(event, CheckpointPublished)}
    pairs = verdict.pairs(ends, begun[1:], options.window)
    published = [took[step] for step in begun[1:-1]]
    return {
        "ends": ends,
        "begun": begun,
        "pairs": pairs,
        "checkpoint_seconds": [event.seconds for event in published],
        "checkpoint_blocked": [event.blocked for event in published],
        "window": options.window,
    }


def _machine(folder: Path) -> str:
    torch = importlib.metadata.version("torch")
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch}; "
        f"saving to {folder} on {_file_system(folder)}"
    )


def _file_system(folder: Path) -> str:
    """Its kind: that of the longest mount point above it."""
    kinds = {}
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split()
        if folder.is_relative_to(point):
            kinds[len(point)] = kind
    return kinds[max(kinds)] if kinds else "an unknown file system"
