"""What the measurements of `shoal bench checkpoint` come to: medians, ratios, and whether each bound holds. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Bounds; times and rates as parts of another's.
BLOCKED_OF_TORCH_SAVE = 1 / 20
EXTRA_COPIES = 1.0
SLACK = 0.05  # of the state: memory of a process varies by some megabytes without any save
THROUGHPUT = 0.97
ASYNC = ("async DCP", "async DCP, thread", "async DCP, process")


@dataclass(frozen=True)
class Bound:
    what: str
    found: float
    limit: float
    holds: bool


def pairs(ends: Sequence[float], begun: Sequence[int], window: float) -> list[dict[str, float]]:
    """Steps per second with and without a checkpoint, for each checkpoint but the last.

    `ends` has the time at which step 1, 2, ... ended; `begun` the steps after which checkpoints began. A window begins
    and ends with a step, so that its steps and its seconds are both exact.
    """
    found = []
    for first, following in zip(begun, begun[1:], strict=False):
        middle = bisect.bisect_left(ends, ends[first - 1] + window) + 1  # the step that ends the first window
        rates = {
            "with": (middle - first) / (ends[middle - 1] - ends[first - 1]),
            "without": (following - middle) / (ends[following - 1] - ends[middle - 1]),
        }
        found.append({**rates, "ratio": rates["with"] / rates["without"]})
    return found


def medians(saves: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """By method and quantity."""
    return {
        name: {quantity: statistics.median(save[quantity] for save in made) for quantity in made[0]}
        for name, made in saves.items()
    }


def judge(found: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The text to print, and the bounds as data."""
    typical = medians(found["saves"]["saves"])
    size: int = found["saves"]["state_bytes"]
    copies = {name: memory["growth"] / memory["state_bytes"] for name, memory in found["memory"].items()}
    helpers = {name: memory["helpers"] / memory["state_bytes"] for name, memory in found["memory"].items()}
    rates: list[dict[str, float]] = found["throughput"]["pairs"]
    bounds = _bounds(typical, copies["shoal"], statistics.median(pair["ratio"] for pair in rates))
    lines = [
        f"state of {size / 1e6:.0f} MB, a step takes {found['saves']['step'] * 1e3:.0f} ms; medians",
        f"  {'':<20} {'blocked':>10} {'of torch.save':>14} {'total':>9} {'of torch.save':>14} {'lost':>9} {'memory':>13}",
        *(_row(name, typical, copies.get(name), helpers.get(name, 0.0)) for name in typical),
        "  blocked: the training thread waits; total: until all is written (shoal: published; all but torch.save flush to",
        "  the disk); lost: what the steps meanwhile take longer; memory: peak growth in states, and of DCP's own process",
        f"throughput, 2 workers: {statistics.median(pair['with'] for pair in rates):.3f} steps/s with a checkpoint in "
        f"{found['throughput']['window']:g} s, {statistics.median(pair['without'] for pair in rates):.3f} without; "
        f"a checkpoint takes {max(found['throughput']['checkpoint_seconds']):.2f} s at most",
        *(_bound_line(bound) for bound in bounds),
    ]
    return "\n".join(lines), [asdict(bound) for bound in bounds]


def _bounds(typical: Mapping[str, Mapping[str, float]], copies: float, rate: float) -> list[Bound]:
    ours, theirs = typical["shoal"], typical["torch.save"]
    strongest = min(ASYNC, key=lambda name: typical[name]["blocked"])
    blocked, total = ours["blocked"] / theirs["blocked"], ours["total"] / theirs["total"]
    of_async = ours["blocked"] / typical[strongest]["blocked"]
    return [
        Bound("blocked, of torch.save's", blocked, BLOCKED_OF_TORCH_SAVE, blocked <= BLOCKED_OF_TORCH_SAVE),
        Bound(f"blocked, of {strongest}'s", of_async, 1.0, of_async <= 1.0),
        Bound("total, of torch.save's", total, 1.0, total <= 1.0),
        Bound("extra copies of the state", copies, EXTRA_COPIES, copies <= EXTRA_COPIES + SLACK),
        Bound("throughput, of that without", rate, THROUGHPUT, rate >= THROUGHPUT),
    ]


def _row(name: str, typical: Mapping[str, Mapping[str, float]], copies: float | None, helpers: float) -> str:
    values, theirs = typical[name], typical["torch.save"]
    memory = "" if copies is None else f"{copies:.2f}" + (f" + {helpers:.2f}" if helpers > SLACK else "")
    return (
        f"  {name:<20} {values['blocked'] * 1e3:7.1f} ms {values['blocked'] / theirs['blocked']:14.3f} "
        f"{values['total']:7.2f} s {values['total'] / theirs['total']:14.2f} {values['lost']:7.2f} s {memory:>13}"
    )


def _bound_line(bound: Bound) -> str:
    sign = "at least" if bound.limit == THROUGHPUT else "at most"
    return f"  {'holds ' if bound.holds else 'MISSED'} {bound.what}: {bound.found:.3f}, {sign} {bound.limit:g}"
