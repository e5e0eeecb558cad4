"""`shoal bench NAME`: the table of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.commands import Command, dispatch

LINES = {
    "training": "a training step on 2 processes against DDP over gloo",
    "collectives": "every collective against gloo, from 8 bytes to 400 MB",
    "parameter-server": "push and pull against torch RPC; slow workers",
    "links": "latency and bandwidth between every two of N processes",
    "recovery": "kills of workers: recovery times, goodput, cost without faults",
    "checkpoint": "a checkpoint against torch.save and distributed checkpoint",
}
BENCHMARKS = {
    name: Command(f"shoal.bench.{name.replace('-', '_')}.command", line, "measuring") for name, line in LINES.items()
}


def main(arguments: Sequence[str]) -> int:
    return dispatch("shoal bench", BENCHMARKS, arguments)
