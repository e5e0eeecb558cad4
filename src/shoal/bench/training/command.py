"""`shoal bench training`: a training step against DDP over gloo, and against no exchange, in turns in one run."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.bench import verdict
from shoal.bench.harness import check_above_zero, medians, worker_of
from shoal.bench.jobs import results, run_job
from shoal.bench.training import figures
from shoal.cli.options import Parser

WORKER = worker_of(__file__)


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    found: dict[str, Any] = {}
    for problem in options.model or figures.STEP:
        print(f"{problem}, {options.workers} workers: measuring ...", flush=True)
        result = found[problem] = measure(problem, options)
        print(figures.text(problem, result), flush=True)
        typical = result["median"] = medians(result["seconds"])
        result["exposed"], result["ratios"] = figures.exposed(typical), figures.ratios(typical)
        result["bounds"] = verdict.as_json(figures.bounds(problem, typical))
    verdict.write(options.json, found)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench training")
    parser.add_argument("-n", "--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each; medians are over these (12)")
    parser.add_argument("--steps", type=int, default=6, help="steps per turn (6)")
    parser.add_argument("--model", choices=list(figures.STEP), action="append", help="this alone; may be given again")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    check_above_zero(options, "workers", "rounds", "steps")
    return options


def measure(problem: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        counts = ("--rounds", str(options.rounds), "--steps", str(options.steps), "--folder", folder)
        run_job(Path(folder), WORKER, problem, *counts, workers=options.workers)
        found: dict[str, Any] = results(Path(folder))
        return found
