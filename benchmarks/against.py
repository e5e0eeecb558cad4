"""Compares this checkout with another one, such as the commit before: the same `shoal bench` commands in turns.

python benchmarks/against.py ../before/.venv/bin/python                     nine pairs of everything, about half an hour
python benchmarks/against.py ../before/.venv/bin/python --part training --pairs 3

The other checkout has an environment of its own in which it is installed. A pair is one run of each, one right after
the other, or several in turns where a run is short, of which the fastest counts; every second pair begins with the
other one. What counts is the median over pairs of this one's time over the other's. Ends with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_start_up import SHOAL, seconds_to_first_step
from between_hosts import seconds_of_a_step
from shoal.bench.verdict import Bound, exit_code, table

Figures = dict[str, float]  # seconds, by what took them


@dataclass(frozen=True)
class Part:
    measure: Callable[[str], Figures]  # with the Shoal that this Python has
    bound: float  # on the median of the ratios
    turns: int = 1  # runs of each in a pair


def bench(*arguments: str, figures: Callable[[Any], Figures]) -> Callable[[str], Figures]:
    """Measure with `shoal bench`; `figures` takes the JSON that it writes."""

    def measure(python: str) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "found.json"
            command = [python, "-m", "shoal", "bench", *arguments, "--json", str(path)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if not path.exists():  # an exit code of 1 only says that a bound of the command itself was missed
                sys.exit(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
            return figures(json.loads(path.read_text(encoding="utf-8")))

    return measure


def training(found: dict[str, Any]) -> Figures:
    return {f"step of {problem}": result["median"]["shoal"] for problem, result in found.items()}


def collectives(found: dict[str, Any]) -> Figures:
    """Per collective and number of ranks the geometric mean over sizes, of the fastest way of calling."""
    logs: dict[str, list[float]] = {}
    for case in found["measurements"]:
        ways = [statistics.median(took) for way, took in case["seconds"].items() if way.startswith("shoal")]
        logs.setdefault(f"{case['collective']}, {case['ranks']} ranks", []).append(math.log(min(ways)))
    return {name: math.exp(statistics.mean(values)) for name, values in logs.items()}


def push_and_pull(found: dict[str, Any]) -> Figures:
    return {way: statistics.median(took) for way, took in found["transfer"].items() if way.startswith("Shoal")}


def recovery(found: dict[str, Any]) -> Figures:
    return {"step after a kill": statistics.median(found["kills"]["recoveries"])}


def start(python: str) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SHOAL, encoding="utf-8")
        command = [python, "-m", "shoal", "run", "-n", "2", "--threads", "1", "train.py"]
        return {"command to first step": seconds_to_first_step(command, folder, 2)}


def between_hosts(python: str) -> Figures:
    return {"step between two hosts": seconds_of_a_step(python)}


COLLECTIVES = ("collectives", "--quick", "--only", "all-reduce", "--only", "all-gather", "--only", "broadcast")
PARTS = {
    "training": Part(bench("training", "--rounds", "4", figures=training), 1.03),
    "between hosts": Part(between_hosts, 1.03, turns=2),
    # What takes microseconds takes three times as long in one run as in the next, with the same code.
    "collectives": Part(bench(*COLLECTIVES, figures=collectives), 1.03, turns=3),
    "push and pull": Part(bench("parameter-server", "--part", "transfer", "--turns", "5", figures=push_and_pull), 1.03),
    "recovery": Part(bench("recovery", "--only", "kills", "--kills", "4", figures=recovery), 1.10),
    "start": Part(start, 1.10, turns=2),
}


def pairs(before: str, part: Part, count: int) -> Iterator[dict[str, float]]:
    """Ratios of this checkout's time to the other's, by figure."""
    for number in range(count):
        order = [before, sys.executable] if number % 2 == 0 else [sys.executable, before]
        found: dict[str, list[Figures]] = {before: [], sys.executable: []}
        for _ in range(part.turns):
            for python in order:
                found[python].append(part.measure(python))
        own, other = fastest(found[sys.executable]), fastest(found[before])
        yield {name: seconds / other[name] for name, seconds in own.items()}


def fastest(runs: list[Figures]) -> Figures:
    return {name: min(run[name] for run in runs) for name in runs[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the other checkout's Python")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="this alone; may be given again")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    bounds = []
    for name in options.part or PARTS:
        part = PARTS[name]
        ratios: dict[str, list[float]] = {}
        for number, pair in enumerate(pairs(options.before, part, options.pairs)):
            print(f"{name}, pair {number + 1}: " + ", ".join(f"{what} {ratio:.3f}" for what, ratio in pair.items()))
            sys.stdout.flush()
            for what, ratio in pair.items():
                ratios.setdefault(what, []).append(ratio)
        for what, values in ratios.items():
            spread = f"{min(values):.3f} to {max(values):.3f}"
            bounds.append(Bound(f"{name}, {what}", statistics.median(values), "at most", part.bound, spread))
    print(table(bounds))
    return exit_code(bounds)


if __name__ == "__main__":
    sys.exit(main())
