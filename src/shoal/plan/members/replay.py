"""One random schedule again, with everything that the coordinator noted: for whoever looks into a failed one."""

from __future__ import annotations

from collections.abc import Iterator

from shoal import events
from shoal.plan.members.cluster import Cluster, Parts
from shoal.plan.members.fault_schedules import Schedule
from shoal.plan.members.invariants import Violation

# Of these there are too many to be told.
LEFT_OUT = (events.CheckpointPublished, events.CheckpointStarted, events.StepsApplied)


def how_to_replay(seed: int) -> str:
    return f"shoal simulate --replay {seed}"


def replay(schedule: Schedule, parts: Parts | None = None) -> Iterator[str]:
    """Lines for people. The last one says how it ended; raises Violation after it where something was not true."""
    config = schedule.config
    hosts = ", ".join(str(schedule.host_of(worker)) for worker in range(config.workers))
    yield (
        f"schedule {schedule.seed}: {config.workers} workers on hosts {hosts}, at least {config.fewest}, "
        f"a checkpoint every {schedule.pace.checkpoint_every} steps, {len(schedule.faults)} faults, "
        f"{len(schedule.late)} more behind the loop"
    )
    cluster = Cluster(schedule, parts or Parts())
    violation: Violation | None = None
    last = ""
    try:
        outcome = cluster.run()
        last = (
            f"finished after {outcome.seconds:.1f} s: {outcome.steps} steps ({outcome.applied} applied), "
            f"{outcome.generations} generations, {outcome.checkpoints} checkpoints, {outcome.restores} restores"
        )
    except Violation as found:
        violation, last = found, f"NOT TRUE: {found}"
    happened = [(time, f"fault: {fault.kind.value} ({fault.seconds:.1f} s)") for time, fault in cluster.suffered]
    happened += [
        (time, f"{type(event).__struct_config__.tag}: {_text(event)}")
        for time, event in cluster.events
        if not isinstance(event, LEFT_OUT)
    ]
    for time, text in sorted(happened, key=lambda pair: pair[0]):
        yield f"{time:8.3f} s  {text}"
    yield last
    if violation is not None:
        raise violation


def _text(event: events.AnyEvent) -> str:
    worker = getattr(event, "worker", None)
    who = "" if worker is None else f"worker {worker}"
    number = getattr(event, "generation", None)
    which = "" if number is None else f"generation {number}"
    return ", ".join(part for part in (which, who, getattr(event, "reason", "")) if part)
