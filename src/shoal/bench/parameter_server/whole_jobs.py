"""Whole jobs of `shoal bench parameter-server`: one slow worker among four, and time to a held-out loss."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.bench.jobs import run_job
from shoal.errors import ScriptFailed
from shoal.events import Evaluated, LoopStarted, Record

SCRIPT = Path(__file__).with_name("sleeping_script.py")
WORKERS = 4
SLOWER = 4  # times
PAUSE = 0.05  # seconds that a batch of a fast worker takes
BATCHES = 800
ALONE = 100
TURNS = 3
SERVED: Mapping[str, object] = {"strategy": "parameter-server", "servers": "1"}
FREE: Mapping[str, object] = {**SERVED, "consistency": "asynchronous"}


def slow() -> dict[str, float]:
    """Batches per second, all workers together: their own speeds added up, asynchronous, and all-reduce."""
    speeds: dict[str, list[float]] = {"own": [], "asynchronous": [], "all-reduce": []}
    for _ in range(TURNS):
        fast = _speed(1, 0, ALONE, FREE)
        slowed = _speed(1, 1, ALONE // SLOWER, FREE)
        speeds["own"].append((WORKERS - 1) * fast + slowed)
        speeds["asynchronous"].append(_speed(WORKERS, 1, BATCHES, FREE))
        speeds["all-reduce"].append(_speed(WORKERS, 1, BATCHES // SLOWER, {}))
    return {way: statistics.median(found) for way, found in speeds.items()}


def _speed(workers: int, slow_ones: int, batches: int, settings: Mapping[str, object]) -> float:
    """Batches per second of a job, from the moment when all its workers are at work to that when the first one ends."""
    with tempfile.TemporaryDirectory() as folder:
        counts = ("--batches", str(batches), "--slow", str(slow_ones), "--pause", str(PAUSE), "--slower", str(SLOWER))
        run_job(Path(folder), SCRIPT, *counts, "--times", folder, **{"workers": workers, **settings})
        times = [sorted(map(float, path.read_text().split())) for path in Path(folder).glob("times-*")]
    if len(times) != workers or min(map(len, times)) < 3:
        raise ScriptFailed(f"of {workers} workers {len(times)} left their times; the benchmark needs them all")
    began, ended = max(each[0] for each in times), min(each[-1] for each in times)
    count = sum(1 for each in times for moment in each if began < moment <= ended)
    return count / (ended - began)


EXAMPLES: Mapping[str, tuple[str, float]] = {"digits.py": ("loss", 0.15), "gpt.py": ("loss", 3.0)}
MODES: Mapping[str, Mapping[str, object]] = {
    "all-reduce": {},
    "parameter server, synchronous": SERVED,
    "parameter server, staleness 4": {**SERVED, "staleness": "4"},
    "parameter server, asynchronous": FREE,
}


def losses() -> dict[str, dict[str, Any]]:
    """By example and mode: seconds from the first step until the held-out loss is at most the limit, and the best."""
    folder = Path(__file__).parents[4] / "examples"
    if not folder.is_dir():
        raise ScriptFailed(f"the examples are not at {folder}; run this part from a checkout of the project")
    found: dict[str, dict[str, Any]] = {}
    for example, (score, limit) in EXAMPLES.items():
        found[example] = {}
        for mode, settings in MODES.items():
            with tempfile.TemporaryDirectory() as place:
                arguments = ("--epochs", "12") if example == "digits.py" else ("--rounds", "12", "--steps", "50")
                records = run_job(Path(place), folder / example, *arguments, **{"workers": 2, **settings})
                found[example][mode] = _time_to(records, score, limit)
    return found


def _time_to(records: Sequence[Record], score: str, limit: float) -> dict[str, float | None]:
    started, reached, best = None, None, float("inf")
    for record in records:
        if isinstance(record.event, LoopStarted) and started is None:
            started = record.time
        if isinstance(record.event, Evaluated) and (value := record.event.scores.get(score)) is not None:
            best = min(best, value)
            if reached is None and value <= limit and started is not None:
                reached = record.time - started
    return {"seconds": reached, "best": best}
