"""`shoal bench NAME`: measurements on this machine, one module each."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.commands import Command, dispatch

BENCHMARKS: dict[str, Command] = {
    "training": Command("shoal.cli.bench_training", "a training step on 2 processes against DDP over gloo"),
    "collectives": Command("shoal.cli.bench_collectives", "every collective against gloo, from 8 bytes to 400 MB"),
    "parameter-server": Command("shoal.cli.bench_parameter_server", "push and pull against torch RPC; slow workers"),
    "links": Command("shoal.cli.bench_links", "latency and bandwidth between every two of N processes"),
    "recovery": Command("shoal.cli.bench_recovery", "kills of workers: recovery times, goodput, cost without faults"),
    "checkpoint": Command("shoal.cli.bench_checkpoint", "a checkpoint against torch.save and distributed checkpoint"),
}


def main(arguments: Sequence[str]) -> int:
    return dispatch("shoal bench", BENCHMARKS, arguments)
