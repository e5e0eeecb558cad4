"""`shoal bench training`: a training step against DDP over gloo, and against no exchange, in turns in one run."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.cli.launch import launch
from shoal.cli.options import Parser
from shoal.errors import ScriptFailed

WORKER = Path(__file__).with_name("bench_training_worker.py")
BATCH = {"mlp": 16, "transformer": 8}


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="shoal bench training")
    parser.add_argument("-n", "--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each; medians are over these (12)")
    parser.add_argument("--steps", type=int, default=6, help="steps per turn (6)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    results: dict[str, Any] = {}
    for name, batch in BATCH.items():
        print(f"{name}, batch {batch} per worker, {options.workers} workers: measuring ...", flush=True)
        results[name] = measure(name, batch, options)
        print(table(results[name]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job and read the line that its first worker printed."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        counts = ("--batch", str(batch), "--rounds", str(options.rounds), "--steps", str(options.steps))
        with contextlib.redirect_stdout(io.StringIO()):
            code = launch(WORKER, name, *counts, workers=options.workers, run_dir=str(run_dir), progress="none")
        log = (run_dir / "logs" / "worker-0.log").read_text(encoding="utf-8")
    lines = [line for line in log.splitlines() if line.startswith('{"parameters"')]
    if code != 0 or not lines:
        raise ScriptFailed(f"the benchmark of {name} ended with exit code {code}: {log.strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[0])
    return found


def table(result: dict[str, Any]) -> str:
    median: dict[str, float] = result["median"]
    strongest = min(("ddp", "ddp-static"), key=lambda name: median[name])
    floor = median["no exchange"]
    lines = [f"  {result['parameters'] / 1e6:.1f} million parameters; strongest DDP setting here: {strongest}"]
    for name, seconds in median.items():
        ratio = seconds / median[strongest]
        lines.append(
            f"  {name:<12} {seconds * 1e3:8.1f} ms  {ratio:5.2f} of DDP  exchange {(seconds - floor) * 1e3:7.1f} ms"
        )
    return "\n".join(lines)
