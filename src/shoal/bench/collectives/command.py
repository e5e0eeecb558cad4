"""`shoal bench collectives`: every collective through gloo and through Shoal, in turns in the same processes.

By default 2 and 4 processes on this machine, 8 bytes to 400 MB, in under ten minutes. The limit that memory sets
is measured too: all processes copy the same bytes at once. `figures` has the bounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.bench import texts, verdict
from shoal.bench.collectives import figures
from shoal.bench.collectives.figures import FREE, KB, LOCAL, MB, SHAPED, Measurement
from shoal.bench.collectives.two_machines import HOSTS, INTERFACE, TwoMachines
from shoal.bench.harness import Crew, CrewMember, machine, worker_of
from shoal.cli.options import Parser
from shoal.environment import inherited
from shoal.errors import UsageError
from shoal.transport.native import native

WORKER = worker_of(__file__)
OTHERS = ("reduce-scatter", "all-gather", "broadcast", "all-to-all", "reduce", "gather", "scatter", "send", "barrier")
COLLECTIVES = ("all-reduce", *OTHERS)
SIZES = {
    "all-reduce": (8, KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 100 * MB, 400 * MB),
    "barrier": (0,),
}
OTHER_SIZES = (8, 4 * KB, 64 * KB, MB, 4 * MB, 16 * MB, 100 * MB, 400 * MB)
QUICK_SIZES = (8, 16 * KB, MB, 16 * MB)
QUICK = 0.4  # of the usual turns
SECOND_LOOK = 2.0  # times the usual turns
FREE_CASES = tuple((name, size) for name in ("all-reduce", "broadcast", "send") for size in (KB, MB, 16 * MB, 100 * MB))
SHAPED_CASES = (("all-reduce", 16 * MB), ("all-reduce", 64 * MB), ("send", 16 * MB))

Cases = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Whereabouts:
    """Where ranks run."""

    where: str
    host: str  # of the first rank
    interface: str
    prefix: Callable[[int], list[str]]  # by rank: what comes before its command

    def start(self, rank: int, ranks: int) -> dict[str, Any]:
        """How a rank's process is started here."""
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.interface}
        # DeepSpeed learns from these that all ranks are on one machine, and how to name its shared memory.
        variables |= {"LOCAL_SIZE": str(ranks), "MASTER_ADDR": self.host, "MASTER_PORT": str(os.getpid())}
        return {"prefix": self.prefix(rank), "env": inherited(variables)}


HERE = Whereabouts(LOCAL, "127.0.0.1", "lo", lambda _rank: [])


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    print(_machine(), flush=True)
    measured: list[Measurement] = []
    for ranks in options.ranks:
        print(
            f"{ranks} ranks on one machine; medians of the slowest rank, gloo's fastest call against ours:", flush=True
        )
        measured += _measure(HERE, ranks, _cases(options), options)
    if options.namespaces:
        measured += _between_machines(options)
    bounds = figures.bounds(measured)
    print(verdict.table(bounds))
    found = {"machine": _machine(), "measurements": msgspec.to_builtins(measured), "bounds": verdict.as_json(bounds)}
    verdict.write(options.json, found)
    return verdict.exit_code(bounds)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench collectives")
    parser.add_argument("-n", "--ranks", type=_ranks, default=(2, 4), metavar="N,...", help="processes (2,4)")
    parser.add_argument("--sizes", type=_sizes, metavar="SIZE,...", help="bytes, such as 8,64k,16m; default 8 to 400m")
    parser.add_argument(
        "--only", choices=COLLECTIVES, action="append", help="measure only this collective; may be given again"
    )
    parser.add_argument("--quick", action="store_true", help="four sizes and fewer turns: about a minute")
    parser.add_argument(
        "--deepspeed", action="store_true", help="DeepSpeed's all-reduce as well, if there are cores for all"
    )
    parser.add_argument("--namespaces", action="store_true", help="also between two network namespaces; needs root")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    if options.deepspeed and importlib.util.find_spec("deepspeed") is None:
        raise UsageError(texts.NO_DEEPSPEED)
    return options


def _ranks(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text) or not all(2 <= int(part) <= 64 for part in text.split(",")):
        raise UsageError(texts.bad_ranks(text))
    return tuple(int(part) for part in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    units = {"": 1, "k": KB, "m": MB}
    parts = [re.fullmatch(r"(\d{1,6})([km]?)", part) for part in text.lower().split(",")]
    found = tuple(int(part[1]) * units[part[2]] for part in parts if part is not None)
    if len(found) < len(parts) or not all(4 <= size <= 1 << 32 for size in found):
        raise UsageError(texts.bad_sizes(text))
    return found


def _cases(options: argparse.Namespace) -> list[tuple[str, int]]:
    cases = []
    for name in options.only or COLLECTIVES:
        usual = QUICK_SIZES if options.quick and name != "barrier" else SIZES.get(name, OTHER_SIZES)
        cases += [(name, size) for size in (usual if options.sizes is None or name == "barrier" else options.sizes)]
    return cases


def _between_machines(options: argparse.Namespace) -> list[Measurement]:
    with TwoMachines() as machines:
        place = Whereabouts(FREE, HOSTS[0], INTERFACE, machines.prefix)
        print("2 ranks on two machines (network namespaces), no limit:", flush=True)
        found = _measure(place, 2, FREE_CASES, options)
        machines.shape()
        print("the same at 1 Gbit/s, beside a plain socket that moves the same bytes:", flush=True)
        return found + _measure(Whereabouts(SHAPED, HOSTS[0], INTERFACE, machines.prefix), 2, SHAPED_CASES, options)


def _measure(place: Whereabouts, ranks: int, cases: Cases, options: argparse.Namespace) -> list[Measurement]:
    with Crew() as crew:
        processes = [
            crew.start(f"rank {rank}", str(WORKER), str(rank), str(ranks), place.host, **place.start(rank, ranks))
            for rank in range(ranks)
        ]
        besides = {
            "deepspeed": options.deepspeed and place.where == LOCAL and ranks <= (os.cpu_count() or 1),
            "socket": place.where == SHAPED,
        }
        _order(processes, {"port": processes[0].answer(), **besides})
        scale = QUICK if options.quick else 1.0
        found = [_measured(processes, place, case, scale) for case in cases]
        # A short disturbance must not decide: measure again with more turns; both measurements count.
        for number, case in enumerate(cases):
            if figures.is_missed(found[number]):
                print("  once more:", flush=True)
                found[number] = found[number].joined(_measured(processes, place, case, SECOND_LOOK * scale))
        return found


def _measured(processes: Sequence[CrewMember], place: Whereabouts, case: tuple[str, int], scale: float) -> Measurement:
    _order(processes, (*case, scale))
    measured = msgspec.convert({**processes[0].answer(), "where": place.where}, Measurement)
    print("  " + figures.line(measured), flush=True)
    return measured


def _order(processes: Sequence[CrewMember], order: object) -> None:
    for process in processes:
        process.order(order)


def _machine() -> str:
    return f"{machine()}; Shoal {'without' if native is None else 'with'} its C extension"
