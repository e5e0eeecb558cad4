"""`shoal bench parameter-server`: push and pull against torch RPC and plain sockets, slow workers, several servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.bench.parameter_server import figures as verdict
from shoal.bench.parameter_server import whole_jobs as jobs
from shoal.bench.parameter_server.transfer import transfer
from shoal.cli.options import Parser
from shoal.errors import UsageError

PARTS = ("transfer", "slow", "servers", "loss")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    results: dict[str, Any] = {}
    elements = options.megabytes * 1_000_000 // 4
    for part in options.part or PARTS[:3]:
        if part == "transfer":
            print(f"{options.megabytes} MB up and down, one worker, one server: measuring ...", flush=True)
            results[part] = transfer(elements, options.turns, servers=1)
            print(verdict.transfer_text(results[part]), flush=True)
        elif part == "servers":
            print(f"{options.megabytes} MB up and down, 1 to 4 servers: measuring ...", flush=True)
            results[part] = {
                count: transfer(elements, options.turns, servers=count, baselines=False) for count in range(1, 5)
            }
            print(verdict.servers_text(results[part]), flush=True)
        elif part == "slow":
            print(
                "four workers that sleep instead of computing, one of them 4 times as long: measuring ...", flush=True
            )
            results[part] = jobs.slow()
            print(verdict.slow_text(results[part]), flush=True)
        else:
            print("time to a held-out loss, in every mode: measuring ...", flush=True)
            results[part] = jobs.losses()
            print(verdict.loss_text(results[part]), flush=True)
    judged = verdict.bounds(results)
    for bound in judged:
        print(f"  {'holds ' if bound.holds else 'MISSED'} {bound.what}: {bound.found:.2f}, {bound.rule}")
    if options.json:
        results["bounds"] = [{**vars(bound), "holds": bound.holds} for bound in judged]
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(bound.holds for bound in judged) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench parameter-server")
    parser.add_argument("--megabytes", type=int, default=100, help="of gradients, and of parameters (100)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each way; medians are over these (15)")
    parser.add_argument("--part", choices=PARTS, action="append", help="this alone; default: all but loss")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    for name in ("megabytes", "turns"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}; it should be 1 or more")
    return options
