"""What the measurements of `shoal bench collectives` mean: medians, ratios and bounds. Pure.

Where a collective can be called in several ways, the fastest way of each library counts. Only the promise that nothing
is slower than gloo compares every way of calling.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from shoal.bench.verdict import Bound

KB, MB = 1 << 10, 1 << 20
# Bounds: gloo's time over Shoal's, unless said otherwise.
ALL_REDUCE = {2: 4.0, 4: 3.0}  # from 1 MB on, by number of ranks
SMALL_ALL_REDUCE = 5.0  # from 4 to 64 KB
DEEPSPEED = 1.0  # DeepSpeed's time over Shoal's, from 1 MB on
OTHERS = 2.0  # from 1 to 16 MB
LARGE_OTHERS, LARGE_MEMCPY = 1.5, 0.8  # above 16 MB; either is enough, the second against a copy of the same bytes
NEVER_BELOW = 0.95
UNSHAPED = 1.0  # between two machines, without a limit on the link
SOCKET = 0.95  # of what a plain socket reaches at 1 Gbit
TRIPS = {"send": 2}  # how often the bytes travel in one call

LOCAL, FREE, SHAPED = "one machine", "two machines", "two machines at 1 Gbit"


class Measurement(msgspec.Struct, frozen=True):
    collective: str
    bytes: int  # of the largest tensor on a rank
    ranks: int
    seconds: dict[str, list[float]]  # per call, of the slowest rank, turn by turn; by library and way of calling
    where: str = LOCAL

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def best(self, library: str) -> float | None:
        """The median of the library's fastest way; None where the library was not measured."""
        ways = [self.median(name) for name in self.seconds if name.split()[0] == library]
        return min(ways) if ways else None

    def ratio(self, library: str = "gloo") -> float:
        """The library's time over Shoal's; infinite where the library was not measured."""
        theirs, ours = self.best(library), self.best("shoal")
        assert ours is not None
        return math.inf if theirs is None else theirs / ours

    def worst_ratio(self) -> float:
        """The lowest ratio to gloo of all ways of calling that gloo has."""
        ways = [name.partition(" ")[2] for name in self.seconds if name.split()[0] == "gloo"]
        pairs = [(f"gloo {way}".strip(), f"shoal {way}".strip()) for way in ways]
        return min((self.median(theirs) / self.median(ours) for theirs, ours in pairs), default=math.inf)

    def joined(self, more: Measurement) -> Measurement:
        """With the turns of both measurements."""
        seconds = {name: turns + more.seconds[name] for name, turns in self.seconds.items()}
        return msgspec.structs.replace(self, seconds=seconds)

    @property
    def label(self) -> str:
        size = f" of {size_text(self.bytes)}" if self.bytes else ""
        return f"{self.collective}{size}, {self.ranks} ranks"


@dataclass(frozen=True)
class Promise:
    """A value that every measurement of some kind must reach."""

    what: str
    applies: Callable[[Measurement], bool]
    limit: float
    value: Callable[[Measurement], float] = Measurement.ratio

    def is_missed(self, each: Measurement) -> bool:
        return self.applies(each) and self.value(each) < self.limit


def _is_sum(each: Measurement, least: int, most: float = math.inf) -> bool:
    return each.where == LOCAL and each.collective == "all-reduce" and least <= each.bytes <= most


def _is_other(each: Measurement, least: int, most: float = math.inf) -> bool:
    return each.where == LOCAL and each.collective != "all-reduce" and least <= each.bytes <= most


def _of_large(each: Measurement) -> float:
    return max(each.ratio() / LARGE_OTHERS, each.ratio("memcpy") / LARGE_MEMCPY)


PROMISES = (
    *(
        Promise(
            f"all-reduce from 1 MB, {ranks} ranks: gloo's time over Shoal's",
            lambda each, ranks=ranks: _is_sum(each, MB) and each.ranks == ranks,  # type: ignore[misc]  # bound now
            limit,
        )
        for ranks, limit in ALL_REDUCE.items()
    ),
    Promise(
        "all-reduce, 4 to 64 KB: gloo's time over Shoal's",
        lambda each: _is_sum(each, 4 * KB, 64 * KB),
        SMALL_ALL_REDUCE,
    ),
    Promise(
        "all-reduce from 1 MB: DeepSpeed's time over Shoal's",
        lambda each: _is_sum(each, MB) and each.best("deepspeed") is not None,
        DEEPSPEED,
        lambda each: each.ratio("deepspeed"),
    ),
    Promise(
        "other collectives, 1 to 16 MB: gloo's time over Shoal's",
        lambda each: _is_other(each, MB, 16 * MB),
        OTHERS,
    ),
    Promise(
        "other collectives above 16 MB: of 1.5 times gloo's speed, or of 80% of memcpy's",
        lambda each: _is_other(each, 16 * MB + 1),
        1.0,
        _of_large,
    ),
    Promise(
        "every call: gloo's time over Shoal's",
        lambda each: each.where == LOCAL,
        NEVER_BELOW,
        Measurement.worst_ratio,
    ),
    Promise(
        "between two machines: gloo's time over Shoal's",
        lambda each: each.where == FREE,
        UNSHAPED,
    ),
    Promise(
        "at 1 Gbit: a plain socket's time over Shoal's",
        lambda each: each.where == SHAPED,
        SOCKET,
        lambda each: each.ratio("socket"),
    ),
)


def bounds(measured: Sequence[Measurement]) -> list[Bound]:
    """For each promise about something that was measured, the worst case."""
    found = []
    for promise in PROMISES:
        values = [(promise.value(each), each.label) for each in measured if promise.applies(each)]
        if values:
            worst, where = min(values)
            found.append(Bound(promise.what, worst, "at least", promise.limit, where))
    return found


def is_missed(each: Measurement) -> bool:
    """Whether this measurement breaks a promise and is worth another look."""
    return any(promise.is_missed(each) for promise in PROMISES)


def size_text(size: int) -> str:
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def line(measured: Measurement) -> str:
    """One measurement for people."""
    parts = [f"{measured.collective:<15}{size_text(measured.bytes) if measured.bytes else '':>8}"]
    for library in ("gloo", "shoal", "memcpy", "deepspeed", "socket"):
        if (seconds := measured.best(library)) is not None:
            rate = TRIPS.get(measured.collective, 1) * measured.bytes / seconds / 1e9
            speed = f" {rate:6.2f} GB/s" if measured.bytes >= KB else " " * 12
            parts.append(f"{library} {1e3 * seconds:9.3f} ms{speed}")
    against = "socket" if measured.best("socket") is not None else "gloo"
    parts.append(f"{measured.ratio(against):6.2f}x" + (f" of {against}'s" if against != "gloo" else ""))
    return "  ".join(parts)
