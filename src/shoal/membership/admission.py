"""Whether a newcomer may join or watch the job, and why not. Pure.

Holding the job's token has been proved before this is asked (`coordinator`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from shoal.membership import reasons
from shoal.membership.roster import Worker
from shoal.wire.messages import PROTOCOL_VERSION, ClientMessage, Ended, Join, Watch


def objection(message: ClientMessage, ended: Ended | None) -> str:
    """Why the sender of this first message is turned away, worker or watcher; empty when there is no reason."""
    if not isinstance(message, Join | Watch):
        return f"its first message was {reasons.name_of(message)}, not join or watch"
    if message.version != PROTOCOL_VERSION:
        return reasons.wrong_version(message.version)
    if ended is not None:
        return f"the job has ended: {ended.text}"
    return ""


def objection_to_worker(join: Join, workers: int, joined: Mapping[int, Worker], exited: Container[int]) -> str:
    """Why this worker is turned away from a job of so many workers; empty when it is welcome."""
    number = join.worker
    if not 0 <= number < workers:
        return f"worker number {number} is not one of this job's, which go from 0 to {workers - 1}"
    if number in joined:
        other = joined[number].join
        return f"worker number {number} is in use by process {other.process} on {other.host}"
    if number in exited:
        return f"the process of worker {number} has already ended"
    if not 1 <= join.address.port <= 65535:
        return f"worker {number} says that its peers reach it at {join.address}, which is no address"
    return ""
