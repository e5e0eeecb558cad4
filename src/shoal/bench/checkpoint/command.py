"""`shoal bench checkpoint`: what a checkpoint costs training, against torch.save and distributed checkpoint (DCP).

Runs real jobs: one worker on all cores that saves with every method in turns, one worker per method for its memory, and
two workers that make checkpoints by the clock for the throughput. `figures` has the bounds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.bench import texts, verdict
from shoal.bench.checkpoint import figures
from shoal.bench.harness import check_above_zero, machine, worker_of
from shoal.bench.jobs import results, run_job
from shoal.cli.options import Parser
from shoal.errors import ScriptFailed, UsageError
from shoal.events import AnyEvent, CheckpointLost, CheckpointPublished, CheckpointStarted

WORKER = worker_of(__file__)
BATCH = 64  # per worker
PARTS = ("saves", "memory", "throughput")
MEASURED = ("shoal", "torch.save", "DCP", "async DCP", "async DCP, thread", "async DCP, process")  # for their memory
UNCOUNTED = 2  # checkpoints of the throughput job: one before the first pair, one after the last


@dataclass(frozen=True)
class SavingJobs:
    """Where states are saved and how large they are; runs the jobs."""

    folder: Path
    size_mb: float

    def run(self, name: str, *arguments: str, **settings: Any) -> tuple[dict[str, Any], list[AnyEvent]]:
        """What the script found, and the job's events. `name`: a job of `worker.py`, and perhaps a number."""
        place = self.folder / name
        place.mkdir()
        size = ("--size-mb", str(self.size_mb), "--batch", str(BATCH))
        where = ("--folder", str(place))
        job = (name.partition("-")[0], *where, *size, *arguments)
        events = [record.event for record in run_job(place, WORKER, *job, keep_checkpoints=1, **settings)]
        for event in events:
            if isinstance(event, CheckpointLost):
                raise ScriptFailed(f"the benchmark's checkpoint {event.checkpoint} is lost: {event.reason}")
        return results(place), events


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    place = Path(options.to)
    try:
        place.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".shoal-bench-", dir=place)
    except OSError as error:
        raise UsageError(texts.folder_not_written(options.to, error.strerror)) from None
    with temporary as folder:
        found = _measure(SavingJobs(Path(folder).resolve(), options.size_mb), options)
    print(figures.text(found), flush=True)
    verdict.write(options.json, {**found, "bounds": verdict.as_json(figures.bounds(found))})
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench checkpoint")
    parser.add_argument("--size-mb", type=float, default=400, help="parameters and Adam's state, in megabytes (400)")
    parser.add_argument("--turns", type=int, default=10, help="saves with each method; medians are over these (10)")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of windows, with and without a checkpoint (10)")
    parser.add_argument("--window", type=float, default=10, help="seconds of such a window (10)")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this part; may be given again")
    parser.add_argument("--to", default=".", help="folder to save in; what is saved is removed again (.)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    check_above_zero(options, "size_mb", "turns", "pairs", "window")
    return options


def _measure(jobs: SavingJobs, options: argparse.Namespace) -> dict[str, Any]:
    parts = options.only or PARTS
    found: dict[str, Any] = {"machine": _machine(jobs.folder)}
    print(found["machine"], flush=True)
    if "saves" in parts:
        print("seconds of a save, 1 worker on all cores:", flush=True)
        found["saves"], _ = jobs.run("saves", "--count", str(options.turns), workers=1)
    if "memory" in parts:
        print("memory, a fresh process for each:", flush=True)
        found["memory"] = {}
        for number, name in enumerate(MEASURED):
            print(f"  {name}", flush=True)
            found["memory"][name], _ = jobs.run(f"memory-{number}", "--method", name, workers=1)
    if "throughput" in parts:
        print(f"throughput, 2 workers, {options.pairs} pairs of windows of {options.window:g} s:", flush=True)
        rhythm, count = f"{2 * options.window:.6f}s", options.pairs + UNCOUNTED
        timed, events = jobs.run("throughput", "--count", str(count), workers=2, checkpoint_every=rhythm)
        found["throughput"] = _throughput(timed["ends"], events, options)
    return found


def _throughput(ends: list[float], events: list[AnyEvent], options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoints begin two windows apart: one is written in the first window, none in the second."""
    begun = [event.step for event in events if isinstance(event, CheckpointStarted)][1 : options.pairs + UNCOUNTED]
    published = [event for event in events if isinstance(event, CheckpointPublished) and event.step in begun[:-1]]
    return {
        "ends": ends,
        "begun": begun,
        "pairs": figures.pairs(ends, begun, options.window),
        "checkpoint_seconds": [event.seconds for event in published],
        "checkpoint_blocked": [event.blocked for event in published],
        "window": options.window,
    }


def _machine(folder: Path) -> str:
    kind = _file_system(folder)
    kind += ", which is memory; --to names a folder on a disk" if kind == "tmpfs" else ""
    return f"{machine()}; saving to {folder} ({kind})"


def _file_system(folder: Path) -> str:
    """The kind of file system that the folder is on: the longest mount point above it decides."""
    kinds = {}
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split()
        if folder.is_relative_to(point):
            kinds[len(point)] = kind
    return kinds[max(kinds)]
