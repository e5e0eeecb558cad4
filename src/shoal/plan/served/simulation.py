"""One simulated job on parameter servers from its start to its end, with faults at random moments, from a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.plan.members.invariants import PROGRESS, Violation
from shoal.plan.served.checks import check
from shoal.plan.served.mail import Mail
from shoal.plan.served.served_job import ServedJob
from shoal.plan.served.served_terms import ServedTerms
from shoal.plan.served.simulated_group import SimulatedGroup
from shoal.plan.world.virtual_time import VirtualTime
from shoal.wire.tables import LoopTerms

LIMIT = 600.0  # virtual seconds within which a job must be over
CALM = 60.0  # virtual seconds within which its servers must be settled afterwards


@dataclasses.dataclass(frozen=True)
class ServedOutcome:
    seconds: float
    updates: int  # applied
    views: int  # versions of the server map
    end_reason: str  # why the job stopped before its end; empty: it finished


def simulate_served(seed: int, *, kills_all: bool = False) -> ServedOutcome:
    """`kills_all`: at some time all servers die at once. Raises Violation if an invariant does not hold."""
    time = VirtualTime(seed)
    random = time.random
    replicas = random.choice((1, 2, 2, 3))
    group = SimulatedGroup(Mail(time), random.randint(replicas, replicas + 2), replicas)
    job = ServedJob(group, random.randint(1, 4), _random_terms(time))
    _schedule_faults(job)
    if kills_all:
        time.after(time.between(1.0, 4.0), lambda: None if job.is_over else group.kill_all())
    time.run(LIMIT, lambda: job.is_over)
    if not job.is_over:
        raise Violation(PROGRESS, f"the job is not over after {time.now:.0f} s")
    if job.is_finished:
        time.run(time.now + CALM, lambda: group.is_calm)
        if not group.is_calm:
            raise Violation(PROGRESS, f"the servers do not agree {CALM:.0f} s after the end")
        if job.has_ledger or not kills_all:
            check(job)
    ledger = group.members[0].sequencer.ledger
    views = group.map.version if group.map is not None else 0
    return ServedOutcome(time.now, 0 if ledger is None else ledger.updates, views, job.end_reason)


def _random_terms(time: VirtualTime) -> ServedTerms:
    random = time.random
    is_synchronous = time.chance(0.35)
    loop = LoopTerms(
        loop=1,
        first_epoch=random.choice((0, 3)),
        epochs=random.randint(1, 3),
        samples=random.randint(20, 200),
        update=random.randint(1, 8),
    )
    return ServedTerms(
        mode="synchronous" if is_synchronous else "asynchronous",
        staleness=None if is_synchronous else random.choice((None, 0, 1, 4)),
        loop=loop,
        steps=random.randint(5, 40),
        calls=random.choice((0.0, 0.02, 0.2)),
        is_forgetful=time.chance(0.3),
    )


def _schedule_faults(job: ServedJob) -> None:
    """Faults at random moments of the first seconds."""
    group, time, length = job.group, job.time, job.time.random.choice((2.0, 5.0, 10.0))
    faults: list[tuple[tuple[int, ...], Callable[[], None]]] = [
        ((0, 1, 2, 4), lambda: group.strike(kill=True)),
        ((0, 0, 1, 2), lambda: group.strike(kill=False)),
        ((0, 0, 1), group.add),
        ((0, 2, 5), group.cut),
        ((0, 1, 3), lambda: job.strike(kill=True)),
        ((0, 0, 1, 2), lambda: job.strike(kill=False)),
        ((0, 0, 1), job.join),
        ((0, 1, 4), job.disconnect),
    ]
    for counts, fault in faults:
        for _ in range(time.random.choice(counts)):
            time.after(time.between(0.0, length), fault)
