"""`shoal bench training`: a training step against DDP over gloo, and against no exchange, in turns in one run."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.cli import bench_training_verdict as verdict
from shoal.cli.options import Parser
from shoal.errors import ScriptFailed, UsageError
from shoal.launching.launch import launch

SIGNALLED = 128  # exit codes above it: Ctrl-C and other signals
WORKER = Path(__file__).with_name("bench_training_worker.py")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    results: dict[str, Any] = {}
    for problem in options.model or verdict.STEP:
        print(f"{problem}, {options.workers} workers: measuring ...", flush=True)
        result = results[problem] = measure(problem, options)
        print(verdict.text(problem, result), flush=True)
        typical = result["median"] = verdict.medians(result)
        result["exposed"], result["ratios"] = verdict.exposed(typical), verdict.ratios(typical)
        result["bounds"] = [{**vars(bound), "holds": bound.holds} for bound in verdict.bounds(problem, typical)]
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench training")
    parser.add_argument("-n", "--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each; medians are over these (12)")
    parser.add_argument("--steps", type=int, default=6, help="steps per turn (6)")
    parser.add_argument("--model", choices=list(verdict.STEP), action="append", help="this alone; may be given again")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    for name in ("workers", "rounds", "steps"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}; it should be 1 or more")
    return options


def measure(problem: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job and read the line that its first worker printed."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        counts = ("--rounds", str(options.rounds), "--steps", str(options.steps), "--meet-in", folder)
        with contextlib.redirect_stdout(io.StringIO()):
            code = launch(WORKER, problem, *counts, workers=options.workers, run_dir=str(run_dir), progress="none")
        log = (run_dir / "logs" / "worker-0.log").read_text(encoding="utf-8")
    if code > SIGNALLED:
        sys.exit(code)  # the launcher has said why
    lines = [line for line in log.splitlines() if line.startswith('{"parameters"')]
    if code != 0 or not lines:
        raise ScriptFailed(f"the benchmark of {problem} ended with exit code {code}: {log.strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[0])
    return found
