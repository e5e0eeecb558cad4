"""`shoal bench parameter-server`: push and pull against torch RPC and plain sockets, slow workers, several servers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from shoal.bench import verdict
from shoal.bench.harness import check_above_zero
from shoal.bench.parameter_server import figures, whole_jobs
from shoal.bench.parameter_server.transfer import transfer
from shoal.cli.options import Parser

PARTS = ("transfer", "slow", "servers", "loss")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    results: dict[str, Any] = {}
    elements = options.megabytes * 1_000_000 // 4
    for part in options.part or PARTS[:3]:
        if part == "transfer":
            print(f"{options.megabytes} MB up and down, one worker, one server: measuring ...", flush=True)
            results[part] = transfer(elements, options.turns, servers=1)
            print(figures.transfer_text(results[part]), flush=True)
        elif part == "servers":
            print(f"{options.megabytes} MB up and down, 1 to 4 servers: measuring ...", flush=True)
            results[part] = {
                count: transfer(elements, options.turns, servers=count, baselines=False) for count in range(1, 5)
            }
            print(figures.servers_text(results[part]), flush=True)
        elif part == "slow":
            print(
                "four workers that sleep instead of computing, one of them 4 times as long: measuring ...", flush=True
            )
            results[part] = whole_jobs.slow()
            print(figures.slow_text(results[part]), flush=True)
        else:
            print("time to a held-out loss, in every mode: measuring ...", flush=True)
            results[part] = whole_jobs.losses()
            print(figures.loss_text(results[part]), flush=True)
    bounds = figures.bounds(results)
    print(verdict.table(bounds))
    verdict.write(options.json, {**results, "bounds": verdict.as_json(bounds)})
    return verdict.exit_code(bounds)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench parameter-server")
    parser.add_argument("--megabytes", type=int, default=100, help="of gradients, and of parameters (100)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each way; medians are over these (15)")
    parser.add_argument("--part", choices=PARTS, action="append", help="this alone; default: all but loss")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    check_above_zero(options, "megabytes", "turns")
    return options
