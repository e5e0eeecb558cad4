"""What the measurements of `shoal bench collectives` come to: medians, ratios, and whether each bound holds. Pure.

A call that can be made in several ways counts with a library's fastest, except where nothing may be slower: there
each way counts for itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

KB, MB = 1 << 10, 1 << 20
# Bounds: gloo's time over Shoal's, unless said otherwise.
ALL_REDUCE = {2: 4.0, 4: 3.0}  # from 1 MB on, by number of ranks
SMALL_ALL_REDUCE = 5.0  # from 4 to 64 KB
DEEPSPEED = 1.0  # DeepSpeed's time over Shoal's, from 1 MB on
OTHERS = 2.0  # from 1 to 16 MB
LARGE_OTHERS, LARGE_MEMCPY = 1.5, 0.8  # above; or this part of what copying the same bytes reaches
NEVER_BELOW = 0.95
UNSHAPED = 1.0  # between two machines, without a limit
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
        """The median of its fastest way; None where it was not measured."""
        ways = [self.median(name) for name in self.seconds if name.split()[0] == library]
        return min(ways) if ways else None

    def ratio(self, library: str = "gloo") -> float:
        """That library's time over Shoal's; infinite where there is none."""
        theirs, ours = self.best(library), self.best("shoal")
        assert ours is not None
        return math.inf if theirs is None else theirs / ours

    def worst_ratio(self) -> float:
        """Of all ways of calling that gloo has."""
        ways = [name.partition(" ")[2] for name in self.seconds if name.split()[0] == "gloo"]
        pairs = [(f"gloo {way}".strip(), f"shoal {way}".strip()) for way in ways]
        return min((self.median(theirs) / self.median(ours) for theirs, ours in pairs), default=math.inf)

    def joined(self, more: Measurement) -> Measurement:
        """The turns of both."""
        seconds = {name: turns + more.seconds[name] for name, turns in self.seconds.items()}
        return msgspec.structs.replace(self, seconds=seconds)

    @property
    def label(self) -> str:
        size = f" of {size_text(self.bytes)}" if self.bytes else ""
        return f"{self.collective}{size}, {self.ranks} ranks"


@dataclass(frozen=True)
class Bound:
    what: str
    found: float  # the worst of all that it is about
    limit: float
    where: str  # of the worst
    holds: bool


@dataclass(frozen=True)
class Rule:
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


RULES = (
    *(
        Rule(
            f"all-reduce from 1 MB, {ranks} ranks: gloo's time over Shoal's",
            lambda each, ranks=ranks: _is_sum(each, MB) and each.ranks == ranks,  # type: ignore[misc]  # bound now
            limit,
        )
        for ranks, limit in ALL_REDUCE.items()
    ),
    Rule(
        "all-reduce, 4 to 64 KB: gloo's time over Shoal's",
        lambda each: _is_sum(each, 4 * KB, 64 * KB),
        SMALL_ALL_REDUCE,
    ),
    Rule(
        "all-reduce from 1 MB: DeepSpeed's time over Shoal's",
        lambda each: _is_sum(each, MB) and each.best("deepspeed") is not None,
        DEEPSPEED,
        lambda each: each.ratio("deepspeed"),
    ),
    Rule(
        "other collectives, 1 to 16 MB: gloo's time over Shoal's",
        lambda each: _is_other(each, MB, 16 * MB),
        OTHERS,
    ),
    Rule(
        "other collectives above: that over 1.5, or of 80% of memcpy",
        lambda each: _is_other(each, 16 * MB + 1),
        1.0,
        _of_large,
    ),
    Rule(
        "anything: gloo's time over Shoal's",
        lambda each: each.where == LOCAL,
        NEVER_BELOW,
        Measurement.worst_ratio,
    ),
    Rule(
        "between two machines: gloo's time over Shoal's",
        lambda each: each.where == FREE,
        UNSHAPED,
    ),
    Rule(
        "at 1 Gbit: a plain socket's time over Shoal's",
        lambda each: each.where == SHAPED,
        SOCKET,
        lambda each: each.ratio("socket"),
    ),
)


def bounds(measured: Sequence[Measurement]) -> list[Bound]:
    """Of what was measured, the worst of each rule."""
    found = []
    for rule in RULES:
        values = [(rule.value(each), each.label) for each in measured if rule.applies(each)]
        if values:
            worst, where = min(values)
            found.append(Bound(rule.what, worst, rule.limit, where, worst >= rule.limit))
    return found


def is_missed(each: Measurement) -> bool:
    """Whether some rule does not hold here: then it is worth another look."""
    return any(rule.is_missed(each) for rule in RULES)


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


def verdict(found: Sequence[Bound]) -> list[str]:
    return [
        f"  {'holds ' if bound.holds else 'MISSED'} {bound.what}: {bound.found:.2f}, at least {bound.limit:g} "
        f"({bound.where})"
        for bound in found
    ]


def as_json(found: Sequence[Bound]) -> list[Mapping[str, object]]:
    return [msgspec.to_builtins(bound) for bound in found]
