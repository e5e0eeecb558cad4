"""A planned cluster, what is assumed about it, and its goodput if every failure restarted all nodes. Pure.

Times are in seconds, sizes in bytes, rates in bits per second; people write them as 6h, 10GB, 10Gbit. Not here: the
simulation (`prediction`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import UsageError

MOST_NODES = 10_000
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "b": 1.0}
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}


@dataclass(frozen=True)
class ClusterPlan:
    nodes: int
    mtbf: float  # mean time between failures of one node
    step: float = 1.0  # length of a step with all nodes
    state: float = 1e9  # bytes of parameters and optimizer state
    link: float = 1e10  # bits per second of each node
    restart: float = 60.0  # until the replacement of a lost node has built its model and waits to be let in
    spares: int = 0  # nodes that stand by with everything imported
    checkpoint_every: float = 600.0
    hours: float = 1.0
    seed: int = 0

    def validate(self) -> ClusterPlan:
        if not 1 <= self.nodes <= MOST_NODES:
            raise UsageError(f"--nodes is {self.nodes}; it should be from 1 to {MOST_NODES}")
        for name in ("mtbf", "step", "state", "link", "checkpoint_every", "hours"):
            value: float = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; it should be above 0")
        if not 0 <= self.restart < math.inf or not 0 <= self.spares <= MOST_NODES:
            raise UsageError(f"--restart is {self.restart} and --spares is {self.spares}; they should be 0 or more")
        return self

    @property
    def seconds(self) -> float:
        return self.hours * 3600

    @property
    def copy_seconds(self) -> float:
        """For the whole state over one node's link."""
        return 8 * self.state / self.link

    @property
    def cluster_mtbf(self) -> float:
        return self.mtbf / self.nodes


@dataclass(frozen=True)
class Assumptions:
    """What the prediction assumes; printed with the result."""

    silent_share: float = 0.2  # of failures: the machine is gone without a word; in the others, connections close
    notice: float = 0.002  # seconds until a closed connection is noticed
    message: float = 20e-6  # seconds of the coordinator's time for each message
    connection: float = 0.2e-3  # seconds for each connection that a worker makes or accepts in a new group
    hop: float = 0.2e-3  # seconds for a small message from worker to worker
    spare_start: float = 1.0  # seconds until a spare waits to be let in
    snapshot: float = 10e9  # bytes per second of a checkpoint's copy, during which training stands still
    heartbeat_limit: float = 5.0

    def lines(self, plan: ClusterPlan) -> list[str]:
        return [
            f"a node fails every {duration(plan.mtbf)} on average, at random; the cluster every "
            f"{duration(plan.cluster_mtbf)}",
            f"{self.silent_share:.0%} of failures are silent and noticed after {self.heartbeat_limit:g} s (heartbeat "
            f"limit), the others after {1000 * self.notice:g} ms",
            f"the coordinator takes {1e6 * self.message:g} µs for a message, a worker {1000 * self.connection:g} ms "
            f"for a connection; a small message takes {1000 * self.hop:g} ms",
            f"newcomers get the state over their own link in {duration(plan.copy_seconds)}, while all wait",
            f"the global batch stays the same: with n of {plan.nodes} nodes a step takes {plan.nodes}/n as long",
            f"a checkpoint holds training up for {duration(self.snapshot_seconds(plan))}, every "
            f"{duration(plan.checkpoint_every)}",
        ]

    def snapshot_seconds(self, plan: ClusterPlan) -> float:
        return plan.state / plan.nodes / self.snapshot


def restart_goodput(plan: ClusterPlan, assumed: Assumptions, interval: float) -> float:
    """Goodput by Daly's model: each failure, at random, restarts all nodes from the last checkpoint.

    Expected time for `interval` seconds of work: M exp(R/M) (exp((interval + c)/M) - 1), with M the cluster's mean time
    between failures, R the restart with loading the state, c the cost of a checkpoint.
    """
    between, restart = plan.cluster_mtbf, plan.restart + plan.copy_seconds
    exponent = (restart + interval + assumed.snapshot_seconds(plan)) / between
    if exponent > 700:  # more than a float can hold: no work is ever finished
        return 0.0
    grown = math.exp(restart / between) * math.expm1((interval + assumed.snapshot_seconds(plan)) / between)
    return interval / (between * grown)


def best_interval(plan: ClusterPlan, assumed: Assumptions) -> float:
    """Young's formula: the square root of 2 * cost of a checkpoint * time between failures; at least one step."""
    return max(plan.step, math.sqrt(2 * assumed.snapshot_seconds(plan) * plan.cluster_mtbf))


def duration(seconds: float) -> str:
    """For people: three significant digits and a unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def seconds_of(text: str, *, named: str) -> float:
    return _read(text, SECONDS, named, "a duration such as 30s, 10min, 6h or 3d")


def bytes_of(text: str, *, named: str) -> float:
    return _read(text, BYTES, named, "a size such as 500MB or 10GB")


def bits_of(text: str, *, named: str) -> float:
    return _read(text, BITS, named, "a rate such as 100Mbit or 10Gbit per second")


def _read(text: str, units: Mapping[str, float], named: str, wanted: str) -> float:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", text)
    if found is None or found[2].lower() not in units:
        raise UsageError(f"{named} is {text!r}; it should be {wanted}")
    return float(found[1]) * units[found[2].lower()]
