"""What the measurements of `shoal bench parameter-server` mean: medians, ratios and bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.bench.harness import medians
from shoal.bench.verdict import Bound

SOCKETS, SHARED, SENT = "two sockets", "Shoal, shared", "Shoal, sent"
ONE_CALL = "torch RPC, 1 at once"  # with everything, as scripts do it
TUNED = ", tuned"  # behind the names of baselines in processes that keep freed memory, as Shoal's do

LEAST_OF_RPC = 2.5  # times as fast as torch RPC, on one machine
LEAST_OF_SOCKETS = 0.75  # of the speed of two plain sockets, over TCP
LEAST_FREE = 0.90  # of the sum of the workers' own speeds, asynchronous
MOST_TOGETHER = 0.50  # of it, all-reduce


def fastest_rpc(typical: Mapping[str, float]) -> float:
    """In plain processes."""
    return min(value for way, value in typical.items() if way.startswith("torch RPC") and not way.endswith(TUNED))


def _sockets(typical: Mapping[str, float]) -> float:
    return min(typical[SOCKETS], typical[SOCKETS + TUNED])


def bounds(results: Mapping[str, Any]) -> list[Bound]:
    found = []
    if "transfer" in results:
        typical = medians(results["transfer"])
        for how, seconds in (("with one call", typical[ONE_CALL]), ("at its fastest", fastest_rpc(typical))):
            found.append(
                Bound(f"one machine, times torch RPC {how}", seconds / typical[SHARED], "at least", LEAST_OF_RPC)
            )
        found.append(Bound("over TCP, of two sockets", _sockets(typical) / typical[SENT], "at least", LEAST_OF_SOCKETS))
    if "slow" in results:
        free, together = (results["slow"][way] / results["slow"]["own"] for way in ("asynchronous", "all-reduce"))
        found.append(Bound("one slow worker, asynchronous, of the sum of speeds", free, "at least", LEAST_FREE))
        found.append(Bound("one slow worker, all-reduce, of the sum of speeds", together, "below", MOST_TOGETHER))
    return found


def transfer_text(seconds: Mapping[str, list[float]]) -> str:
    typical = medians(seconds)
    rpc = fastest_rpc(typical)
    lines = [f"  {'':<30} {'median':>9}  {'torch RPC':>9}  {'sockets':>8}   (times as fast)"]
    lines += [
        f"  {way:<30} {value * 1e3:6.1f} ms  {rpc / value:8.2f}x  {_sockets(typical) / value:7.2f}x"
        for way, value in typical.items()
    ]
    return "\n".join(lines)


def servers_text(by_count: Mapping[int, Mapping[str, list[float]]]) -> str:
    lines = [f"  {'servers':<9} {'shared':>9}  {'sent':>9}"]
    for count, seconds in by_count.items():
        typical = medians(seconds)
        lines.append(f"  {count:<9} {typical[SHARED] * 1e3:6.1f} ms  {typical[SENT] * 1e3:6.1f} ms")
    return "\n".join(lines)


def slow_text(found: Mapping[str, float]) -> str:
    lines = [f"  {'sum of their own speeds':<24} {found['own']:7.1f} batches/s"]
    lines += [
        f"  {way:<24} {found[way]:7.1f} batches/s  {found[way] / found['own']:6.1%}"
        for way in ("asynchronous", "all-reduce")
    ]
    return "\n".join(lines)


def loss_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for example, modes in found.items():
        lines.append(f"  {example}")
        for mode, result in modes.items():
            reached = "not reached" if result["seconds"] is None else f"{result['seconds']:6.1f} s"
            lines.append(f"    {mode:<28} {reached:>12}   best {result['best']:.3f}")
    return "\n".join(lines)
