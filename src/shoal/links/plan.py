"""Which schedule serves which sizes, on given links, and why. Pure.

`make_plan` asks the cost model once for every size and keeps a table, in which an operation looks up its size. Every
rank makes the same plan from the same matrix. Two plans need no measurements: `FIXED`, for groups without measured
links, and `IN_RANK_ORDER`, for `--deterministic`. Not here: the schedules themselves (`collectives`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.links import cost
from shoal.links.cost import Cost
from shoal.links.matrix import Hosts, LinkMatrix
from shoal.links.ring_order import ring_order

# Bytes for which the model is asked; schedules change between them.
SIZES: tuple[int, ...] = tuple(2**power for power in range(8, 31))
# A schedule replaces the one of the next smaller size only if it is faster by this fraction: the model is not more
# precise than that, and a table with few ranges is readable.
LEAST_GAIN = 0.05
ROUNDS_PART = 0.25  # of an exchange's time: beyond, it is too small to be worth its rounds of messages
MOST_TOLD = 32  # ranks of a ring's order in a reason; all of them are in the plan


@dataclass(frozen=True)
class Choice:
    """The fastest schedule for one size, and what the others would take."""

    size: int  # bytes
    schedule: str
    seconds: Mapping[str, float]  # by schedule

    @property
    def reason(self) -> str:
        """'64 KB: tree 0.21 ms, ring 0.46'."""
        others = sorted((taken, name) for name, taken in self.seconds.items() if name != self.schedule)
        told = [f"{self.schedule} {_milliseconds(self.seconds[self.schedule])} ms"]
        return f"{size_text(self.size)}: " + ", ".join(told + [f"{name} {_milliseconds(t)}" for t, name in others])


@dataclass(frozen=True)
class SizeTable:
    """Schedules by size."""

    least: tuple[int, ...]  # bytes from which each of them is taken; the first is 0
    schedules: tuple[str, ...]

    def at(self, size: int) -> str:
        return self.schedules[bisect_right(self.least, size) - 1]

    @property
    def text(self) -> str:
        """'tree, from 512 KB ring'."""
        later = zip(self.least[1:], self.schedules[1:], strict=True)
        return ", ".join([self.schedules[0], *(f"from {size_text(least)} {name}" for least, name in later)])


@dataclass(frozen=True)
class LinkPlan:
    all_reduce: SizeTable
    broadcast: SizeTable  # `ring` is a chain here
    order: tuple[int, ...] = ()  # of the ranks around a ring; empty: 0, 1, 2, ...
    hosts: Hosts = ()  # empty: not known, or every rank has its own
    between: LinkPlan | None = None  # among the first ranks of the hosts, where hosts are known
    reason: str = "no link was measured, auto has a fixed table"
    seconds: float = 0.0  # that measuring took
    least_bytes: int = 0  # of a tensor that is worth an exchange of its own; 0: not known
    matrix: LinkMatrix | None = None  # the figures behind the plan, as they were measured; None: none were


# Bytes up to which a tree's fewer rounds make it faster. Measured with ring and tree over loopback, and then set lower
# (bench_all_reduce.md), since on a real link a tree sends up to three times the tensor through one rank.
FIXED_TREE_BYTES = 512 * 1024
FIXED = LinkPlan(
    all_reduce=SizeTable((0, FIXED_TREE_BYTES + 1), ("tree", "ring")),
    broadcast=SizeTable((0, FIXED_TREE_BYTES + 1), ("tree", "ring")),
)
# Sums have the same bits wherever the ranks are: a chain adds up in the order of the ranks, as shared memory does.
IN_RANK_ORDER = replace(
    FIXED,
    all_reduce=SizeTable((0,), ("chain",)),
    reason="--deterministic: ranks add up one after the other, for the same bits as in one machine's memory",
)


def fixed_plan(hosts: Hosts = ()) -> LinkPlan:
    """The fixed table; hosts matter only if a hierarchical schedule is asked for."""
    return replace(FIXED, hosts=hosts, between=FIXED) if hosts else FIXED


def make_plan(matrix: LinkMatrix, hosts: Hosts = ()) -> LinkPlan:
    """`hosts`: the ranks of each host, if that is known and a host is to be treated as one."""
    if matrix.size < 2:
        return FIXED
    raw, matrix = matrix, matrix.levelled()
    has_levels = 1 < len(hosts) < matrix.size
    between = make_plan(matrix.among([host[0] for host in hosts])) if has_levels else None
    order = ring_order(matrix)
    all_reduces = _all_reduces(matrix, order, hosts)
    all_reduce = _table(all_reduces)
    is_usual = order == tuple(range(matrix.size))
    told = "" if is_usual or "ring" not in all_reduce.schedules else f"; ring in the order {_ranks_text(order)}"
    figures = "; ".join(_choice(all_reduces, size).reason for size in _telling(all_reduce))
    least = between.least_bytes if between is not None else _least_bytes(all_reduces)
    worth = f"{size_text(least)} are worth an exchange"
    return LinkPlan(
        all_reduce=all_reduce,
        broadcast=_table(_broadcasts(matrix, order, hosts)),
        order=() if is_usual else order,
        hosts=hosts if has_levels else (),
        between=between,
        reason=f"{all_reduce.text}{told}: {matrix.text}; {figures}; {worth}",
        seconds=matrix.seconds,
        least_bytes=least,
        matrix=raw,
    )


def choose(size: int, matrix: LinkMatrix, hosts: Hosts = ()) -> Choice:
    """The fastest all-reduce for one size by the model alone, without the table's preference for few changes."""
    return _choice(_all_reduces(matrix, ring_order(matrix), hosts), size)


def _all_reduces(matrix: LinkMatrix, order: tuple[int, ...], hosts: Hosts) -> Mapping[str, Cost]:
    """The candidates for an all-reduce; among equals, the first is taken."""
    flat: dict[str, Cost] = {
        "tree": lambda size: cost.tree(matrix, size),
        "halving-doubling": lambda size: cost.halving_doubling(matrix, size),
        "ring": lambda size: cost.ring(matrix, size, order),
        "double-tree": lambda size: cost.double_tree(matrix, size),
    }
    if not 1 < len(hosts) < matrix.size:
        return flat
    leaders = matrix.among([host[0] for host in hosts])
    outside = _all_reduces(leaders, ring_order(leaders), ())

    def hierarchical(size: int) -> float:
        return cost.inside_hosts(matrix, size, hosts) + min(taken(size) for taken in outside.values())

    return {"hierarchical": hierarchical, **flat}


def _broadcasts(matrix: LinkMatrix, order: tuple[int, ...], hosts: Hosts) -> Mapping[str, Cost]:
    """From rank 0, which stands for any source."""
    flat: dict[str, Cost] = {
        "tree": lambda size: cost.tree_broadcast(matrix, size),
        "ring": lambda size: cost.chain_broadcast(matrix, size, order),
    }
    if not 1 < len(hosts) < matrix.size:
        return flat
    leaders = [host[0] for host in hosts]

    def hierarchical(size: int) -> float:
        inside = max(cost.tree_broadcast(matrix, size, host) for host in hosts)
        return cost.tree_broadcast(matrix, size, leaders) + inside

    return {"hierarchical": hierarchical, **flat}


def _choice(costs: Mapping[str, Cost], size: int) -> Choice:
    seconds = {name: taken(size) for name, taken in costs.items()}
    return Choice(size, min(seconds, key=lambda name: seconds[name]), seconds)


def _table(costs: Mapping[str, Cost]) -> SizeTable:
    least, schedules = [0], [_choice(costs, SIZES[0]).schedule]
    for size in SIZES[1:]:
        choice = _choice(costs, size)
        if choice.seconds[choice.schedule] < (1 - LEAST_GAIN) * choice.seconds[schedules[-1]]:
            least.append(size)
            schedules.append(choice.schedule)
    return SizeTable(tuple(least), tuple(schedules))


def _least_bytes(costs: Mapping[str, Cost]) -> int:
    """From this size on, an exchange spends its time on bytes rather than on rounds of messages."""
    rounds = min(taken(SIZES[0]) for taken in costs.values())
    return next((size for size in SIZES if rounds <= ROUNDS_PART * min(t(size) for t in costs.values())), SIZES[-1])


def _telling(table: SizeTable) -> list[int]:
    """One size in each range, whose figures explain the choice."""
    ends = [*table.least[1:], 64 * max(table.least[-1], 1024)]
    return [max(SIZES[0], least, min(SIZES[-1], end // 4)) for least, end in zip(table.least, ends, strict=True)]


def _ranks_text(order: tuple[int, ...]) -> str:
    return " ".join(map(str, order[:MOST_TOLD])) + (" ..." if len(order) > MOST_TOLD else "")


def size_text(size: int) -> str:
    """256 B, 64 KB, 16 MB: powers of 1024."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.4g} KB" if size < 1024**2 else f"{size / 1024**2:.4g} MB"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2g}" if seconds < 0.1 else f"{1000 * seconds:.0f}"
