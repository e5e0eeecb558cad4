"""The purposes of connections in a server group. A purpose says which secret opens the connection."""

from __future__ import annotations

SERVER_PURPOSE = b"parameters server"  # between servers; the group's token opens it
KEEPER_PURPOSE = b"keeper"  # of servers and administrators with the keeper; the group's token opens it


def job_purpose(job: str) -> bytes:
    """The purpose of a worker's connection to a server. The key of the job's space opens it."""
    return f"parameters job={job}".encode()


def keeper_job_purpose(job: str) -> bytes:
    """The purpose of a worker's connection to the keeper. The key of the job's space opens it."""
    return f"keeper job={job}".encode()
