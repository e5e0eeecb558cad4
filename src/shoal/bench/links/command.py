"""`shoal bench links`: latency and bandwidth of the links between every two of N processes on this machine.

Measures links as a job does when a generation forms, over the same TCP mesh. Then prints which schedule the cost model
chooses for each size, and why.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from shoal.bench import texts, verdict
from shoal.bench.harness import Crew, worker_of
from shoal.cli.options import Parser
from shoal.cli.terminal_tables import columns
from shoal.errors import UsageError
from shoal.links.matrix import LinkMatrix
from shoal.links.plan import make_plan
from shoal.settings.setting_checks import MOST_LOCAL

WORKER = worker_of(__file__)
PATIENCE = 30.0  # seconds for a process to end when everything is measured


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="shoal bench links")
    parser.add_argument("-n", "--workers", type=int, default=4, help="processes (4)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    if not 2 <= options.workers <= MOST_LOCAL:
        raise UsageError(texts.bad_workers(options.workers, MOST_LOCAL))
    matrix = measured(options.workers)
    plan = make_plan(matrix)
    print("\n".join(table(matrix)))
    print(f"measured in {matrix.seconds:.3f} s; all-reduce by {plan.reason}")
    found = {
        "workers": matrix.size,
        "seconds": matrix.seconds,
        "latency_us": _latencies(matrix),
        "bandwidth_gb_s": _bandwidths(matrix),
        "all_reduce": dict(zip(plan.all_reduce.least, plan.all_reduce.schedules, strict=True)),
        "ring_order": plan.order or tuple(range(matrix.size)),
        "reason": plan.reason,
    }
    verdict.write(options.json, found)
    return 0


def measured(workers: int) -> LinkMatrix:
    """Start the processes, tell each the addresses of all, and read what the first one found."""
    with Crew() as crew:
        token = secrets.token_hex(16)
        processes = [crew.start(f"process {rank}", str(WORKER)) for rank in range(workers)]
        for process in processes:
            process.order(token)
        addresses = [process.answer() for process in processes]
        for rank, process in enumerate(processes):
            process.order({"rank": rank, "addresses": addresses})
        matrix = msgspec.convert(processes[0].answer(), LinkMatrix)
        for process in processes:
            process.finish(PATIENCE)
        return matrix


def table(matrix: LinkMatrix) -> list[str]:
    """From each rank (down) to each (across): microseconds, then gigabytes per second."""
    ranks = range(matrix.size)
    lines = []
    for title, digits, figures in (
        ("latency, us", 1, _latencies(matrix)),
        ("bandwidth, GB/s", 2, _bandwidths(matrix)),
    ):
        rows = [["from \\ to", *map(str, ranks)]]
        rows += [
            [str(source), *("-" if source == target else f"{figures[source][target]:.{digits}f}" for target in ranks)]
            for source in ranks
        ]
        lines += [title, *columns(rows, right=range(1, matrix.size + 1), indent="  ")]
    return lines


def _latencies(matrix: LinkMatrix) -> list[list[float]]:
    return [[1e6 * link.latency for link in row] for row in matrix.rows]


def _bandwidths(matrix: LinkMatrix) -> list[list[float]]:
    return [[link.bandwidth / 1e9 for link in row] for row in matrix.rows]
