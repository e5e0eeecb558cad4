"""Which members of a generation are silent, or do not move while others wait for them. Pure.

A member that is silent towards the coordinator may still be at work. Synchronous training needs all members, so the
others' progress proves that the silent one is alive and only cut off from the coordinator. Where workers do not wait
for each other, nothing proves that. Not here: what follows (`generations`), and how it is reported (`deaths`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from shoal.membership.core.roster import Worker

DOUBT = 2.5  # heartbeats; a member that missed more in a row may soon be missed for good


@dataclass(frozen=True)
class Hearing:
    """Which members are heard from."""

    # By number: silent for longer than the limit, and nothing proves that they are alive.
    silent: dict[int, Worker] = field(default_factory=dict)
    is_doubtful: bool = False  # other members may turn out to be silent soon
    is_awaiting: bool = False  # after a restart, some members may still be on their way back to this coordinator
    has_live: bool = False  # at least one member is connected and was heard from within the limit
    last: float = -math.inf  # when any member was last heard from


@dataclass(frozen=True)
class Ear:
    """What silence means in a job."""

    limit: float  # seconds; the longest silence that is allowed
    interval: float  # seconds between heartbeats
    needs_everybody: bool = True  # a step takes all members, so the others' steps prove that a silent one is alive


def listen(members: Collection[Worker], now: float, ear: Ear) -> Hearing:
    first, second = _furthest_advances(members) if ear.needs_everybody else (-math.inf, -math.inf)
    silent: dict[int, Worker] = {}
    is_doubtful = is_awaiting = has_live = False
    last = -math.inf
    for worker in members:
        proof = second if worker.advanced == first else first
        quiet = now - max(worker.heard, proof)
        last = max(last, worker.heard)
        if quiet > ear.limit:
            silent[worker.number] = worker
        elif worker.is_awaited and worker.exit_code is None:
            is_awaiting = True
        elif worker.is_connected:
            has_live = True
            is_doubtful = is_doubtful or quiet > DOUBT * ear.interval
    return Hearing(silent, is_doubtful, is_awaiting, has_live, last)


def _furthest_advances(members: Collection[Worker]) -> tuple[float, float]:
    """The two latest times at which members' steps went up: a member cannot prove itself alive."""
    first = second = -math.inf
    for worker in members:
        if worker.advanced > first:
            first, second = worker.advanced, first
        elif worker.advanced > second:
            second = worker.advanced
    return first, second


def heard_again(members: Collection[Worker], hearing: Hearing) -> list[Worker]:
    """Members that were missed and are heard from again."""
    return [
        worker
        for worker in members
        if worker.suspected is not None and worker.is_connected and worker.number not in hearing.silent
    ]


def lost(members: Collection[Worker], hearing: Hearing) -> list[Worker]:
    """Members that the others go on without: dead, cut off or silent for too long."""
    silent = {number for number, worker in hearing.silent.items() if worker.suspected is not None}
    return [
        worker
        for worker in members
        if worker.is_here
        and (
            worker.exit_code is not None
            or worker.cut_off
            or worker.number in silent
            or (worker.client is None and not worker.is_awaited and hearing.has_live)
        )
    ]


def hung(members: Collection[Worker], now: float, limit: float) -> tuple[Worker, ...]:
    """Members in the script's own code that have not moved for `limit` seconds while others wait that long."""
    if not any(worker.stalled >= limit and worker.is_connected for worker in members):
        return ()
    return tuple(
        worker
        for worker in members
        if worker.is_connected and not worker.is_done and worker.stalled == 0 and now - worker.moved >= limit
    )
