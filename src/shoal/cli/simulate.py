"""`shoal simulate`: predicts how much a cluster would get done, and replays random fault schedules."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.cli import texts
from shoal.cli.options import Once, Parser
from shoal.errors import UsageError
from shoal.plan.cluster_plan import (
    Assumptions,
    ClusterPlan,
    best_interval,
    bits_of,
    bytes_of,
    duration,
    restart_goodput,
    seconds_of,
)
from shoal.plan.members.cluster import replay
from shoal.plan.members.fault_schedules import random_schedule
from shoal.plan.members.invariants import Violation
from shoal.plan.prediction import CAUSES, Prediction, predict

DESCRIPTION = """\
Predicts the goodput of a cluster: nodes fail at random, are replaced, and Shoal's own membership core decides what
happens, in virtual time. The network and the nodes are a model; its assumptions are printed with the result."""

PATIENCE = 2.0  # seconds between two words to the user
QUANTITIES: dict[str, Callable[..., float]] = {
    "mtbf": seconds_of,
    "step": seconds_of,
    "state": bytes_of,
    "link": bits_of,
    "restart": seconds_of,
    "checkpoint-every": seconds_of,
}


def parser() -> Parser:
    made = Parser(prog="shoal simulate", description=DESCRIPTION)
    shared: dict[str, Any] = {"action": Once, "default": argparse.SUPPRESS}
    cluster = made.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=_whole("nodes"), metavar="N", help="number of nodes, up to 10000", **shared)
    cluster.add_argument("--mtbf", metavar="TIME", help="mean time between failures of one node, such as 6h", **shared)
    cluster.add_argument("--step", metavar="TIME", help="of one step with all nodes (default: 1s)", **shared)
    cluster.add_argument("--state", metavar="SIZE", help="parameters and optimizer state (default: 1GB)", **shared)
    cluster.add_argument("--link", metavar="RATE", help="of each node, per second (default: 10Gbit)", **shared)
    cluster.add_argument(
        "--restart", metavar="TIME", help="until a replacement is ready to be let in (default: 60s)", **shared
    )
    cluster.add_argument(
        "--spares", type=_whole("spares"), metavar="N", help="nodes that stand by (default: 0)", **shared
    )
    cluster.add_argument(
        "--checkpoint-every", dest="checkpoint-every", metavar="TIME", help="(default: 10min)", **shared
    )
    run = made.add_argument_group("the simulation")
    run.add_argument("--hours", type=float, metavar="X", help="of virtual time (default: 1)", **shared)
    run.add_argument("--seed", type=_whole("seed"), metavar="N", help="of the failures (default: 0)", **shared)
    run.add_argument("--json", metavar="FILE", help="write the result to a file too", **shared)
    run.add_argument(
        "--replay",
        type=_whole("replay"),
        metavar="SEED",
        help="do not predict: replay one random fault schedule of Shoal's tests and print what happens",
        **shared,
    )
    return made


def _whole(name: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise UsageError(texts.wrong_kind(name, text, "a whole number")) from None

    return read


def main(arguments: Sequence[str]) -> int:
    given = vars(parser().parse_all(arguments))
    if "replay" in given:
        return _replay(given)
    plan, assumed = _plan(given), Assumptions()
    prediction = predict(plan, assumed, _Progress())
    print("\n".join(lines(plan, assumed, prediction)))
    if "json" in given:
        text = json.dumps(as_json(plan, assumed, prediction), indent=1)
        Path(given["json"]).write_text(text + "\n", encoding="utf-8")
    return 0


def _replay(given: dict[str, Any]) -> int:
    if len(given) > 1:
        other = next(name for name in given if name != "replay")
        raise UsageError(texts.replay_and_more(other))
    try:
        for line in replay(random_schedule(given["replay"])):
            print(line)
    except Violation:
        return 1
    return 0


def _plan(given: dict[str, Any]) -> ClusterPlan:
    for name in ("nodes", "mtbf"):
        if name not in given:
            raise UsageError(texts.option_missing(name))
    values: dict[str, Any] = {
        name.replace("-", "_"): QUANTITIES[name](value, named=f"--{name}") if name in QUANTITIES else value
        for name, value in given.items()
        if name != "json"
    }
    return ClusterPlan(**values).validate()


class _Progress:
    """Tells the user now and then how far the simulation is."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._said >= PATIENCE:
            self._said = now
            print(texts.simulated(share), file=sys.stderr, flush=True)


def lines(plan: ClusterPlan, assumed: Assumptions, found: Prediction) -> list[str]:
    """The result as text."""
    told = [
        f"{plan.nodes:,} nodes for {duration(plan.seconds)}, decided by Shoal's own membership core (seed {plan.seed})",
        "",
        f"goodput        {found.goodput:7.1%}  of what the same nodes would do without failures",
        f"failures       {found.failures:7,}",
        f"generations    {found.generations:7,}  and {found.newcomers:,} newcomers were let in",
        f"restores       {found.restores:7,}  from a checkpoint, because no worker with the state was left",
    ]
    if found.end:
        told += ["", f"The job ended early: {found.end}"]
    told += ["", "where the rest of the time went"]
    for cause, seconds in sorted(found.lost.items(), key=lambda pair: -pair[1]):
        told.append(f"  {seconds / found.seconds:6.1%}  {CAUSES[cause]}")
    told += ["", "for comparison, if each failure restarted all nodes from the last checkpoint (Young/Daly formula)"]
    for text, interval in _intervals(plan, assumed):
        told.append(f"  {restart_goodput(plan, assumed, interval):6.1%}  {text}")
    told += ["", "assumed", *(f"  - {line}" for line in assumed.lines(plan))]
    return told


def _intervals(plan: ClusterPlan, assumed: Assumptions) -> list[tuple[str, float]]:
    best = best_interval(plan, assumed)
    return [
        (f"with a checkpoint every {duration(plan.checkpoint_every)}", plan.checkpoint_every),
        (f"with one every {duration(best)}, which is best", best),
    ]


def as_json(plan: ClusterPlan, assumed: Assumptions, found: Prediction) -> dict[str, Any]:
    return {
        "cluster": dataclasses.asdict(plan),
        "assumed": dataclasses.asdict(assumed),
        "prediction": {**dataclasses.asdict(found), "goodput": found.goodput},
        "restart_everything": [
            {"checkpoint_every": interval, "goodput": restart_goodput(plan, assumed, interval)}
            for _, interval in _intervals(plan, assumed)
        ],
    }
