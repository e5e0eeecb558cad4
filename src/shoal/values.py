"""Frozen values that every layer uses: addresses, members, generations, cursors.

These are the nouns of messages and decisions. Not here: what can happen (`events`), what can go wrong (`errors`), what
a user may set (`job_config`). No torch in this module: launching processes must not wait for its import.
"""

from __future__ import annotations

import msgspec

from shoal.bounds import Count, Members, Name, Ordinal, Port, Text, Total, Whole


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a process listens."""

    host: Name
    port: Port  # 1..65535; 0 only where a free port is asked for

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Member(msgspec.Struct, frozen=True):
    """One worker of a generation."""

    rank: Ordinal  # 0..size-1, dense within the generation
    worker: Ordinal  # the worker's number for the whole job; never reused
    host: Name  # for people: the machine's name
    process: Ordinal  # process id on that machine
    address: Address  # where its peers reach it
    share: Ordinal = 1  # relative part of a global batch; all equal until machines are measured


THROUGH = 2**31 - 1  # instead of a meeting's number: the script has nothing left to run


class LostMember(msgspec.Struct, frozen=True):
    """A member that was lost, and how far its script is known to have got outside loops."""

    worker: Ordinal
    generation: Ordinal  # the last that the member was in
    point: Count  # the last meeting outside loops that it had come to, counted from 1 in program order; 0: not known


class Generation(msgspec.Struct, frozen=True):
    """A numbered membership. Every change makes the next one; every message between workers carries its number."""

    number: Ordinal  # counts from 1
    members: Members[Member]  # ordered by rank
    schedule: Name  # name of the collective schedule: ring, tree or auto
    codec: Name  # name of the codec that encodes tensors
    reason: Text  # why this generation formed, for people
    # Workers that bring the job's state from the last generation; only their state may be copied. Empty: all workers
    # start from the newest checkpoint, or from the top if there is none.
    holders: Members[Ordinal] = ()
    # Members of earlier generations that were lost since a step was last applied: their unfinished code behind a loop
    # may have to be run again (`membership.member.alignment`).
    lost: Members[LostMember] = ()

    @property
    def size(self) -> int:
        return len(self.members)

    def rank_of(self, worker: int) -> int | None:
        return next((member.rank for member in self.members if member.worker == worker), None)


class Unreached(msgspec.Struct, frozen=True):
    """Members that one member cannot reach, as far as it can tell: worker numbers, or ranks in `transport`.

    A member that only gave up because of another one is in neither list.
    """

    unreachable: Members[Ordinal] = ()  # members whose machines do not answer
    late: Members[Ordinal] = ()  # members whose machines answer, but that did not connect in time


class Server(msgspec.Struct, frozen=True):
    """One process of a server group."""

    number: Ordinal  # counts from 0; never reused
    address: Address  # where workers and other servers reach it
    host: Name  # for people
    process: Ordinal


class Departure(msgspec.Struct, frozen=True):
    """A server has left its group."""

    number: Ordinal
    reason: Text
    is_wanted: bool = False  # it was removed, and its blocks have moved; otherwise it was lost


class ServerMap(msgspec.Struct, frozen=True):
    """A numbered membership of a server group. Hashing gives the servers of each block: see `parameters.blocks`.

    While blocks move (`before` is not `after`), every update goes to the holders of both placements, and the holders of
    `before` answer reads. Servers that are named in a placement but not in `servers` are dead.
    """

    version: Ordinal  # counts from 1
    servers: Members[Server]  # living servers in the order in which they came; the first is the home server
    before: Members[Ordinal]  # numbers whose placement holds every block
    after: Members[Ordinal]  # numbers of the placement that is being made
    replicas: Ordinal  # servers that hold each block
    reason: Text = ""  # why this version was made, for people
    departures: Members[Departure] = ()  # recent ones, oldest first, for receivers that do not see every version

    @property
    def is_settled(self) -> bool:
        return self.before == self.after

    @property
    def home(self) -> Server:
        return self.servers[0]

    def server(self, number: int) -> Server | None:
        return next((server for server in self.servers if server.number == number), None)


class Cursor(msgspec.Struct, frozen=True, order=True):
    """How far the job is in one loop over its data."""

    epoch: Count = 0  # counts from 0
    position: Count = 0  # samples of this epoch that applied steps have used

    @property
    def text(self) -> str:
        """For people, who count from 1."""
        if self.position == 0 and self.epoch > 0:
            return f"end of epoch {self.epoch}"
        return f"epoch {self.epoch + 1}, {self.position:,} samples"


class StepClock(msgspec.Struct, frozen=True, order=True):
    """Orders states: a later generation's state beats an earlier one's, then the number of applied steps decides."""

    generation: Ordinal = 0
    step: Count = 0  # applied steps so far, over all loops of the job


class Standing(msgspec.Struct, frozen=True):
    """Where one worker is in its script, and which state of the job it holds. All members compare their standings."""

    generation: Ordinal = 0  # in which the worker's state was last agreed on; 0: it holds no state
    step: Count = 0  # applied steps
    points: Count = 0  # meetings outside loops that the worker has passed, in program order
    loop: Ordinal = 0  # number of the worker's current or last loop over data
    in_loop: bool = False  # the worker has passed that loop's start, but not its end
    end_points: Count = 0  # meetings that the worker had passed at the end of its last loop
    is_changed: bool = False  # the script has changed parameters behind that loop: it cannot go back to its end
    is_doubtful: bool = False  # a collective failed on this worker that may have given others a result
    is_stopped: bool = False  # the worker knows of an agreement to end all loops
    is_new: bool = False  # the worker has not been in a generation yet, and waits where it first needs the others
    digest: Whole = 0  # of its parameters and buffers
    saw_loss: bool = False  # the worker found that servers have lost the job's state


class ProcessUse(msgspec.Struct, frozen=True):
    """What a process has used so far, without processes that it started. Two of them give the use in between."""

    age: float  # seconds since measuring began
    processor: float  # seconds of processor time, over all threads
    memory: Total  # bytes that are resident now


class TimeShares(msgspec.Struct, frozen=True):
    """Where a worker's wall time went, in seconds. The six parts add up to the time inside loops."""

    compute: float = 0.0
    communication: float = 0.0  # bytes of an exchange were moving and the script had to wait for them
    waiting: float = 0.0  # the script had to wait for a peer that was not there yet
    input: float = 0.0  # waiting for the next batch
    checkpoint: float = 0.0  # held up by the copy of the state for a checkpoint
    other: float = 0.0  # bookkeeping of a step: snapshots, reports, regrouping

    def plus(self, more: TimeShares) -> TimeShares:
        return TimeShares(
            compute=self.compute + more.compute,
            communication=self.communication + more.communication,
            waiting=self.waiting + more.waiting,
            input=self.input + more.input,
            checkpoint=self.checkpoint + more.checkpoint,
            other=self.other + more.other,
        )

    @property
    def total(self) -> float:
        return self.compute + self.communication + self.waiting + self.input + self.checkpoint + self.other


class ServerLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one server has done since it started. Subtract two values to get what it did in between."""

    server: Ordinal
    seconds: float  # since its start
    bytes_in: Total
    bytes_out: Total
    requests: Total
    updates: Total  # applied
    queue_seconds: float  # total time that requests waited before they were read
    busy_seconds: float
    held_bytes: Total  # of parameters, state and staged pushes
    limit_bytes: Total


class HostLink(msgspec.Struct, frozen=True):
    """One direction of the link between two hosts, as measured between one worker of each."""

    source: Ordinal  # worker
    target: Ordinal  # worker
    source_host: Name
    target_host: Name
    latency: float  # seconds until the first byte is there, with the work of both processes
    bandwidth: float  # bytes per second
