"""`shoal bench links`: latency and bandwidth of the links between every two of N processes on this machine.

The same measuring that a job does when a generation forms, over the same TCP mesh. Then what the cost model makes of
it: the schedule for each size, and why.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.bench.links.worker import PATIENCE, Table
from shoal.cli.options import Parser
from shoal.cli.tables import columns
from shoal.errors import ScriptFailed, UsageError
from shoal.job_config import MOST_LOCAL
from shoal.links.matrix import LinkMatrix
from shoal.links.plan import make_plan
from shoal.values import Address

WORKER = Path(__file__).with_name("worker.py")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="shoal bench links")
    parser.add_argument("-n", "--workers", type=int, default=4, help="processes (4)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    if not 2 <= options.workers <= MOST_LOCAL:
        raise UsageError(f"--workers is {options.workers}; links need from 2 to {MOST_LOCAL} processes")
    matrix = measured(options.workers)
    plan = make_plan(matrix)
    print("\n".join(table(matrix)))
    print(f"measured in {matrix.seconds:.3f} s; all-reduce by {plan.reason}")
    if options.json:
        found = {
            "workers": matrix.size,
            "seconds": matrix.seconds,
            "latency_us": [[1e6 * link.latency for link in row] for row in matrix.rows],
            "bandwidth_gb_s": [[link.bandwidth / 1e9 for link in row] for row in matrix.rows],
            "all_reduce": dict(zip(plan.all_reduce.least, plan.all_reduce.schedules, strict=True)),
            "ring_order": plan.order or tuple(range(matrix.size)),
            "reason": plan.reason,
        }
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(workers: int) -> LinkMatrix:
    """Start the processes, tell them of each other, and read what the first one found."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(workers):
            line = [sys.executable, str(WORKER)]
            processes.append(subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        token = secrets.token_hex(16)
        for process in processes:
            _tell(process, token)
        addresses = [msgspec.json.decode(_line(process), type=Address) for process in processes]
        for rank, process in enumerate(processes):
            _tell(process, msgspec.json.encode(Table(rank, addresses)).decode())
        matrix = msgspec.json.decode(_line(processes[0]), type=LinkMatrix)
        for process in processes:
            process.wait(PATIENCE)
        return matrix
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone: whoever waits for its next line says so
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ScriptFailed(f"a process of the benchmark ended with exit code {process.wait()} before it was done")
    return line


def table(matrix: LinkMatrix) -> list[str]:
    """From each rank (down) to each (across): microseconds, then gigabytes per second."""
    ranks = range(matrix.size)
    lines = []
    for title, digits, figures in (
        ("latency, us", 1, [[1e6 * link.latency for link in row] for row in matrix.rows]),
        ("bandwidth, GB/s", 2, [[link.bandwidth / 1e9 for link in row] for row in matrix.rows]),
    ):
        rows = [["from \\ to", *map(str, ranks)]]
        rows += [
            [str(source), *("-" if source == target else f"{figures[source][target]:.{digits}f}" for target in ranks)]
            for source in ranks
        ]
        lines += [title, *columns(rows, right=range(1, matrix.size + 1), indent="  ")]
    return lines
