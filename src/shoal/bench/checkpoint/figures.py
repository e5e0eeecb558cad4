"""What the measurements of `shoal bench checkpoint` mean: medians, ratios and bounds. Pure.

Each of `saves`, `memory` and `throughput` may be missing: a part that was not measured is not judged.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.bench import texts
from shoal.bench.verdict import Bound, table
from shoal.errors import UsageError

# Bounds; times and rates are parts of the baseline's.
BLOCKED = 1 / 20
EXTRA_COPIES = 1.0
SLACK = 0.05  # of the state: memory of a process varies by some megabytes without any save
THROUGHPUT = 0.97
ASYNC = ("async DCP", "async DCP, thread", "async DCP, process")

Medians = dict[str, dict[str, float]]  # by method and quantity


def pairs(ends: Sequence[float], begun: Sequence[int], window: float) -> list[dict[str, float]]:
    """Steps per second with and without a checkpoint, for each checkpoint but the last.

    `ends` has the times at which step 1, 2, ... ended; `begun` the steps after which checkpoints began, at least two
    windows apart. A window begins and ends with a step, so that its steps and its seconds are both exact.
    """
    found = []
    for first, following in itertools.pairwise(begun):
        start, end = ends[first - 1], ends[following - 1]
        middle = bisect.bisect_left(ends, start + window) + 1  # the step that ends the first window
        if middle >= following:
            raise UsageError(texts.window_too_short(window))
        rates = {
            "with": (middle - first) / (ends[middle - 1] - start),
            "without": (following - middle) / (end - ends[middle - 1]),
        }
        found.append({**rates, "ratio": rates["with"] / rates["without"]})
    return found


def quantity_medians(saves: Mapping[str, Sequence[Mapping[str, float]]]) -> Medians:
    return {
        name: {quantity: statistics.median(save[quantity] for save in made) for quantity in made[0]}
        for name, made in saves.items()
    }


def bounds(found: Mapping[str, Any]) -> list[Bound]:
    judged: list[Bound] = []
    if "saves" in found:
        judged += _bounds_of_saves(quantity_medians(found["saves"]["saves"]))
    if "memory" in found:
        copies = _copies(found["memory"], "shoal", "growth")
        remark = f"{SLACK:g} of this because a process varies without saving"
        judged.append(Bound("extra copies of the state", copies, "at most", EXTRA_COPIES + SLACK, remark))
    if "throughput" in found:
        ratio = statistics.median(pair["ratio"] for pair in found["throughput"]["pairs"])
        judged.append(Bound("throughput, of that without", ratio, "at least", THROUGHPUT))
    return judged


def _bounds_of_saves(typical: Medians) -> list[Bound]:
    ours, theirs = typical["shoal"], typical["torch.save"]
    strongest = min(ASYNC, key=lambda name: typical[name]["blocked"])
    blocked, total = ours["blocked"] / theirs["blocked"], ours["total"] / theirs["total"]
    of_async = ours["blocked"] / typical[strongest]["blocked"]
    return [
        Bound("blocked, of torch.save's", blocked, "at most", BLOCKED),
        Bound(f"blocked, of that of {strongest}", of_async, "at most", 1.0),
        Bound("total, of torch.save's", total, "at most", 1.0),
    ]


def text(found: Mapping[str, Any]) -> str:
    """For people."""
    lines: list[str] = []
    if "saves" in found:
        lines += _saves_lines(found["saves"])
    if "memory" in found:
        lines += [
            "memory: growth of the peak while a state is saved, in states; for DCP's own process, all of its memory"
        ]
        lines += [f"  {name:<20} {_memory(found['memory'], name)}" for name in found["memory"]]
    if "throughput" in found:
        lines.append(_throughput_line(found["throughput"]))
    return "\n".join([*lines, table(bounds(found))])


def _saves_lines(saves: Mapping[str, Any]) -> list[str]:
    typical = quantity_medians(saves["saves"])
    theirs = typical["torch.save"]
    columns = (("blocked", 10), ("of torch.save", 14), ("total", 9), ("of torch.save", 14), ("lost", 9))
    return [
        f"state of {saves['state_bytes'] / 1e6:.0f} MB, a step takes {saves['step'] * 1e3:.0f} ms; medians",
        f"  {'':<20} " + " ".join(f"{title:>{width}}" for title, width in columns),
        *(
            f"  {name:<20} {values['blocked'] * 1e3:7.1f} ms {values['blocked'] / theirs['blocked']:14.3f} "
            f"{values['total']:7.2f} s {values['total'] / theirs['total']:14.2f} {values['lost']:7.2f} s"
            for name, values in typical.items()
        ),
        "  blocked: the training thread waits. total: until all is written; only torch.save without fsync does not",
        "  flush to the disk, and shoal's is published. lost: how much longer than others the steps until then took",
    ]


def _copies(memory: Mapping[str, Mapping[str, int]], name: str, quantity: str) -> float:
    return memory[name][quantity] / memory[name]["state_bytes"]


def _memory(memory: Mapping[str, Mapping[str, int]], name: str) -> str:
    helpers = _copies(memory, name, "helpers")
    return f"{_copies(memory, name, 'growth'):6.2f}" + (f" and {helpers:.2f} in its own process" if helpers else "")


def _throughput_line(throughput: Mapping[str, Any]) -> str:
    rates: list[dict[str, float]] = throughput["pairs"]
    usual = {kind: statistics.median(pair[kind] for pair in rates) for kind in ("with", "without")}
    seconds: list[float] = throughput["checkpoint_seconds"]
    late = sum(taken > throughput["window"] for taken in seconds)
    return (
        f"throughput: {usual['with']:.3f} steps/s in {throughput['window']:g} s with a checkpoint, "
        f"{usual['without']:.3f} without; a checkpoint takes {statistics.median(seconds):.2f} s"
        + (f", and {late} of {len(seconds)} ended in the window without" if late else "")
    )
