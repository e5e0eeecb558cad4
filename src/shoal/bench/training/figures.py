"""What the measurements of `shoal bench training` mean: exposed exchange, ratios and bounds. Pure.

The exposed exchange of a step is how much longer it takes than the same step without any exchange in the same
processes. An exchange that overlaps with the computation does not count; slowing the computation down does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.bench.harness import medians
from shoal.bench.verdict import Bound, table

SHOAL, DDP, FAST_DDP, NO_EXCHANGE = "shoal", "ddp", "ddp static", "no exchange"
IN_WORKER = ", in a Shoal worker"  # behind the names of what also runs in plain processes

# Bounds, as parts of DDP's with its default settings in plain processes.
STEP = {"mlp": 0.70, "gpt": 0.85}
EXPOSED = {"mlp": 1 / 3}


def exposed(typical: Mapping[str, float]) -> dict[str, float]:
    """By method: seconds of its step beyond the one without exchange in the same processes."""
    in_worker = typical[NO_EXCHANGE + IN_WORKER]
    floors = {name: in_worker if name.endswith((SHOAL, IN_WORKER)) else typical[NO_EXCHANGE] for name in typical}
    return {name: seconds - floors[name] for name, seconds in typical.items() if NO_EXCHANGE not in name}


def ratios(typical: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Shoal's step and its exposed exchange, as parts of each DDP's; the latter only where that is above 0."""
    beyond = exposed(typical)
    found = {name: {"step": typical[SHOAL] / typical[name]} for name in beyond if name != SHOAL}
    for name, parts in found.items():
        if beyond[name] > 0:  # less is noise
            parts["exposed"] = beyond[SHOAL] / beyond[name]
    return found


def bounds(problem: str, typical: Mapping[str, float]) -> list[Bound]:
    against = ratios(typical)[DDP]
    judged = [Bound(f"{problem}: step, of that of DDP over gloo", against["step"], "at most", STEP[problem])]
    if problem in EXPOSED and "exposed" in against:
        judged.append(Bound(f"{problem}: exposed exchange, of DDP's", against["exposed"], "at most", EXPOSED[problem]))
    return judged


def text(problem: str, result: Mapping[str, Any]) -> str:
    """For people."""
    typical = medians(result["seconds"])
    beyond, against = exposed(typical), ratios(typical)
    lines = [
        f"{problem}: {result['parameters'] / 1e6:.1f} million parameters, batch {result['batch']} per worker; medians",
        f"  {'':<34} {'step':>9}  {'exposed':>9}  Shoal's step and exposed exchange, of this",
    ]
    for name, seconds in typical.items():
        line = f"  {name:<34} {seconds * 1e3:6.1f} ms"
        line += f"  {beyond[name] * 1e3:6.1f} ms" if name in beyond else ""
        line += "  " + ", ".join(f"{part:.2f}" for part in against.get(name, {}).values())
        lines.append(line.rstrip())
    return "\n".join([*lines, table(bounds(problem, typical))])
