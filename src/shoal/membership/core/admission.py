"""Whether a newcomer may join or watch the job, and why not; what workers and watchers may report. Pure.

The newcomer has already proved that it holds the job's token (`connections`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from shoal import events
from shoal.job_config import JobConfig
from shoal.membership.core import reasons
from shoal.membership.core.protocol import JobProgram
from shoal.membership.core.roster import Fate, Worker
from shoal.wire.messages import PROTOCOL_VERSION, ClientMessage, Join, Watch, Welcome

# Events that only the coordinator may report.
OWN_EVENTS = (
    events.JobStarted,
    events.WorkerJoined,
    events.WorkerReturned,
    events.WorkerExpelled,
    events.GenerationFormed,
    events.WorkerLeft,
    events.WorkerFailed,
    events.WorkerDied,
    events.Waiting,
    events.NewcomersHeld,
    events.CoordinatorReturned,
    events.StorageFailed,
    events.StorageRestored,
    events.ProgressResumed,
    events.CheckpointPublished,
    events.CheckpointLost,
    events.JobEnded,
)
REPORTED = (  # events that a watcher may report
    *(events.WorkerStarted, events.FaultInjected, events.ServerJoined, events.ServerLost, events.ServerLeft),
    *(events.ServersChanged, events.ParametersGone, events.ServersMeasured, events.ConnectionIntercepted),
    *(events.ProcessPlaced, events.EngineSaid),
)


def objection(message: ClientMessage) -> str:
    """Why the sender of this first message is turned away, worker or watcher; empty when there is no reason."""
    if not isinstance(message, Join | Watch):
        return reasons.no_greeting(reasons.name_of(message))
    if message.version != PROTOCOL_VERSION:
        return reasons.wrong_version(message.version)
    return ""


def objection_to_worker(join: Join, highest: int, joined: Mapping[int, Worker], exited: Container[int]) -> str:
    """Why this worker is turned away from a job that has given numbers up to `highest`; empty when it is welcome."""
    number = join.worker
    if not 0 <= number <= highest:
        return reasons.no_such_number(number, highest)
    if number in exited:
        return reasons.process_ended(number)
    if number in joined and not is_same_process(join, joined[number].join):
        other = joined[number].join
        return reasons.number_in_use(number, other.process, other.host)
    if number in joined and joined[number].fate in (Fate.HANDED_OVER, Fate.FAILED):
        return reasons.has_left(number)
    if not 1 <= join.address.port <= 65535:
        return reasons.no_address(number, join.address)
    return ""


def unlike(join: Join, others: Iterable[Worker]) -> str:
    """How a worker's versions differ from those of the job's workers; empty where none is known to differ."""
    own = _versions(join)
    for worker in others:
        for name, version in _versions(worker.join).items():
            if worker.is_here and own.get(name, version) != version:
                return reasons.other_version(name, (worker.number, version), (join.worker, own[name]))
    return ""


def _versions(join: Join) -> dict[str, str]:
    """The versions that the worker named."""
    named = (("shoal", join.shoal), ("torch", join.torch), ("Python", join.python))
    return {name: version for name, version in named if version}


def is_same_process(one: Join, other: Join) -> bool:
    return (one.host, one.process, one.address) == (other.host, other.process, other.address)


def greeting(config: JobConfig, program: JobProgram, *, heartbeat: float) -> Welcome:
    """What every accepted client is told; workers are told of the generation too."""
    return Welcome(
        config=config.to_toml(),
        heartbeat=heartbeat,
        script=program.script,
        arguments=program.arguments,
        digest=program.digest,
        servers=program.servers,
        space=program.space,
        given=config.given,
    )
