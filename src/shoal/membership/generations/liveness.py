"""Who of a generation's members is not heard of, or does not move while others wait for it. Pure.

A member that is not heard of by the coordinator may still be at work: synchronous training needs everybody, so if the
others' steps go up, it lives and is only cut off from here. Where workers run free nothing proves that. Not here: what
follows (`core`), and what is said about it (`deaths`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from shoal.membership.core.roster import Worker

DOUBT = 2.5  # heartbeats missed in a row from which on a member may be about to be missed for good


@dataclass(frozen=True)
class Hearing:
    """What is heard of the members."""

    # By number: not heard of for longer than the limit, and nothing proves that they live.
    silent: dict[int, Worker] = field(default_factory=dict)
    is_doubtful: bool = False  # some others may turn out to be silent soon
    is_awaiting: bool = False  # after a new start, some may still be on their way back to this coordinator
    has_live: bool = False  # somebody is connected and was heard within the limit
    last: float = -math.inf  # when any of them was last heard


@dataclass(frozen=True)
class Ear:
    """What silence means in a job."""

    limit: float  # seconds; the longest silence that is fine
    interval: float  # seconds between heartbeats
    needs_everybody: bool = True  # a step takes all members, so that others' steps prove that a silent one lives


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
    """The two latest times at which members' steps went up: nobody is a witness for itself."""
    first = second = -math.inf
    for worker in members:
        if worker.advanced > first:
            first, second = worker.advanced, first
        elif worker.advanced > second:
            second = worker.advanced
    return first, second


def heard_again(members: Collection[Worker], hearing: Hearing) -> list[Worker]:
    """Members that were missed, and are not any more."""
    return [
        worker
        for worker in members
        if worker.suspected is not None and worker.is_connected and worker.number not in hearing.silent
    ]


def lost(members: Collection[Worker], hearing: Hearing) -> list[Worker]:
    """Members that the others go on without, once all is known that will be: dead, cut off or silent for too long."""
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
