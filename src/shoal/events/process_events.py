"""What happens to a job, its generations, and its processes: coordinator, workers, servers."""

from __future__ import annotations

import msgspec

from shoal.bounds import Count, ExitCode, Members, Name, Ordinal, Settings, Text, Total
from shoal.events.event import Event
from shoal.values import ServerLoad


class JobStarted(Event, frozen=True, tag="job-started"):
    script: Text
    arguments: Members[Text]
    workers: Ordinal
    strategy: Name
    schedule: Name
    codec: Name
    seed: Total
    commit: Name = ""  # of the repository that the script lies in; empty: none, or not known
    is_dirty: bool = False  # files of that repository differed from the commit
    digest: Name = ""  # of the script's file, in hex; empty: it could not be read where the coordinator runs


class WorkerJoined(Event, frozen=True, tag="worker-joined"):
    worker: Ordinal
    host: Name
    process: Ordinal
    address: Name


class GenerationFormed(Event, frozen=True, tag="generation-formed"):
    generation: Ordinal
    workers: Members[Ordinal]  # by rank
    schedule: Name
    codec: Name
    reason: Text


class WorkerReturned(Event, frozen=True, tag="worker-returned"):
    """Its connection had broken, and it is back; it was in the job all the time."""

    worker: Ordinal
    generation: Ordinal


class WorkerExpelled(Event, frozen=True, tag="worker-expelled"):
    """It may be alive, but the others go on without it. It may come back as a newcomer."""

    worker: Ordinal
    step: Count
    reason: Text


class WorkerStarted(Event, frozen=True, tag="worker-started"):
    """The launcher started a process in place of one that is gone, or let a spare one go."""

    worker: Ordinal
    is_spare: bool  # it had torch imported already
    reason: Text


class Waiting(Event, frozen=True, tag="waiting"):
    """There are too few workers; the job goes on when there are enough."""

    workers: Ordinal  # that are there
    needed: Ordinal
    reason: Text


class NewcomersHeld(Event, frozen=True, tag="newcomers-held"):
    """Newcomers that are ready wait for others that are on their way; the members train on meanwhile."""

    workers: Members[Ordinal]  # that are ready
    reason: Text


class CoordinatorReturned(Event, frozen=True, tag="coordinator-returned"):
    """Its process is a new one, which goes on with the job as its recorded decisions have it."""

    generation: Ordinal
    reason: Text
    workers: Members[Ordinal] = ()  # members of that generation


class ConnectionIntercepted(Event, frozen=True, tag="connection-intercepted"):
    """Somebody between two processes of the job decrypted a connection, which the listening end therefore refused."""

    source: Name  # host that the connection came from
    listener: Name  # such as "the coordinator" or "worker 3"
    reason: Text


class FaultInjected(Event, frozen=True, tag="fault-injected"):
    """A fault on purpose (`--chaos`)."""

    fault: Name  # kill, stop, cut, slow, fill-disk or kill-coordinator
    worker: Ordinal | None  # None: the coordinator, the disk or a server
    seconds: float | None  # how long it lasts; None: it is no lasting one
    reason: Text
    server: Ordinal | None = None


class WorkerLeft(Event, frozen=True, tag="worker-left"):
    worker: Ordinal
    step: Count
    reason: Text
    is_handover: bool = False  # its script is not done: it was told to go, and the job goes on without it


class WorkerFailed(Event, frozen=True, tag="worker-failed"):
    """User code raised, or a check of ours did. `error` is the class name."""

    worker: Ordinal
    step: Count
    error: Name
    text: Text  # the error's line, or the whole traceback for an exception in user code


class WorkerDied(Event, frozen=True, tag="worker-died"):
    worker: Ordinal
    host: Name
    process: Ordinal
    step: Count  # the last one it was known to work on
    operation: Text
    reason: Text


class ServerJoined(Event, frozen=True, tag="server-joined"):
    """A parameter server is in its group. This and what follows about servers is the launcher's."""

    server: Ordinal
    host: Name
    process: Ordinal
    address: Name


class ServerLost(Event, frozen=True, tag="server-lost"):
    server: Ordinal
    reason: Text


class ServerLeft(Event, frozen=True, tag="server-left"):
    """It was taken out of its group, and what it held is on others."""

    server: Ordinal
    reason: Text


class ServersChanged(Event, frozen=True, tag="servers-changed"):
    """The group has a new map: who serves, and whether blocks are on their way."""

    version: Ordinal
    servers: Members[Ordinal]  # that serve
    is_settled: bool  # every block is on all servers where it should be
    seconds: float  # since what brought it about: a loss, a request, the beginning of the move
    size: Total  # bytes that were moved for it, where it is settled
    reason: Text


class ParametersGone(Event, frozen=True, tag="parameters-gone"):
    """No living server has some blocks any more: they come from the newest checkpoint."""

    server: Ordinal | None  # that should hold them now; None: all servers were lost, and a worker says so
    blocks: Total
    size: Total  # bytes
    reason: Text
    version: Ordinal = 0  # of the map: under a later one the servers that should have them then say so again


class ServersMeasured(Event, frozen=True, tag="servers-measured"):
    """Every few seconds."""

    version: Ordinal  # of the map
    loads: Members[ServerLoad]
    staleness: Members[Total] = ()  # updates so far by how many others came between read and push: 0, 1, 2, ...
    clocks: Members[tuple[Ordinal, Total]] = ()  # (worker, its updates)


class Advised(Event, frozen=True, tag="advised"):
    """Something works but costs more than it needs to, or was chosen for a reason worth telling."""

    worker: Ordinal | None  # who says so; None: the coordinator
    text: Text
    settings: Settings = msgspec.field(
        default_factory=dict
    )  # of the script, which the job has taken over: they go before those of `config.toml`


class JobEnded(Event, frozen=True, tag="job-ended"):
    outcome: Name  # finished, stopped, failed or interrupted
    exit_code: ExitCode
    reason: Text
    seconds: float
