"""Frozen values that every layer speaks of: addresses, members, generations, cursors.

Covers what is named in a message or a decision. Not here: what can happen (`events`), what can go wrong (`errors`),
what a user may set (`job_config`). No torch in this module: launching processes must not wait for its import.
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


THROUGH = 2**31 - 1  # in place of a meeting's number: the script has run all there is to run


class Lost(msgspec.Struct, frozen=True):
    """A member that was lost, and how far its script is known to have got outside loops."""

    worker: Ordinal
    generation: Ordinal  # the last that it was in
    point: Count  # meeting outside loops, counted from 1 in program order, that it had come to; 0: nothing is known


class Generation(msgspec.Struct, frozen=True):
    """A numbered membership. Every change makes the next one; every message between workers carries its number."""

    number: Ordinal  # counts from 1
    members: Members[Member]  # ordered by rank
    schedule: Name  # name of the collective schedule: ring, tree or auto
    codec: Name  # name of the codec that tensors travel in
    reason: Text  # why this generation was formed, for people
    # Workers that bring the job's state from the last generation; only they may be copied from. None: everybody starts
    # from the newest checkpoint, or from the top where there is none.
    carriers: Members[Ordinal] = ()
    # Members of earlier generations that were lost since a step was last applied: what they should have done behind a
    # loop is to be done again (`membership.member.alignment`).
    lost: Members[Lost] = ()

    @property
    def size(self) -> int:
        return len(self.members)

    def rank_of(self, worker: int) -> int | None:
        return next((member.rank for member in self.members if member.worker == worker), None)


class Unreached(msgspec.Struct, frozen=True):
    """Members that a member of a generation misses, as far as it can tell: worker numbers, or ranks in `transport`.

    Whoever only gave up because of another is in neither list.
    """

    unreachable: Members[Ordinal] = ()  # all whose machines do not answer it
    late: Members[Ordinal] = ()  # all that answer, and did not come when connections were made


class Server(msgspec.Struct, frozen=True):
    """One process of a server group."""

    number: Ordinal  # counts from 0; never given again
    address: Address  # where workers and other servers reach it
    host: Name  # for people
    process: Ordinal


class Departure(msgspec.Struct, frozen=True):
    """A server is in its group no more."""

    number: Ordinal
    reason: Text
    is_wanted: bool = False  # it was taken out, and what it held has moved; otherwise it was lost


class ServerMap(msgspec.Struct, frozen=True):
    """A numbered membership of a server group. Where a block is follows from it by hashing: see `parameters.blocks`.

    While blocks move (`before` is not `after`) every update goes to the holders of both placements, and reads are
    answered by those of `before`. Servers that are named in a placement and are not in `servers` are dead.
    """

    version: Ordinal  # counts from 1
    servers: Members[Server]  # alive, in the order in which they came; the first is home, while it lives
    before: Members[Ordinal]  # numbers whose placement holds every block
    after: Members[Ordinal]  # numbers of the placement that is being made
    replicas: Ordinal  # servers that hold each block
    reason: Text = ""  # why this version was made, for people
    departures: Members[Departure] = ()  # the newest, oldest first, for those who do not see every version

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
    """Where one worker is in its script, and what it holds of the job's state. All members compare theirs."""

    generation: Ordinal = 0  # in which its state was last agreed on; 0: it holds none
    step: Count = 0  # applied steps
    points: Count = 0  # meetings of all workers outside loops that it has passed, in program order
    loop: Ordinal = 0  # number of its current or last loop over data
    in_loop: bool = False  # that loop's start was passed, and its end was not
    end_points: Count = 0  # meetings that it had passed when it came to the end of its last loop
    is_changed: bool = False  # behind that loop its script has changed parameters: it cannot go back to that end
    is_doubtful: bool = False  # its script saw a collective fail that gave others a result
    is_stopped: bool = False  # it knows of an agreement to end all loops
    is_new: bool = False  # it has not been in a generation yet, and waits where it first needs the others
    digest: Whole = 0  # of its parameters and buffers


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
    """What one server has done since it started; the difference of two of them is what it did between."""

    server: Ordinal
    seconds: float  # since its start
    bytes_in: Total
    bytes_out: Total
    requests: Total
    updates: Total  # applied
    queue_seconds: float  # that requests waited before they were looked at, in sum
    busy_seconds: float
    held_bytes: Total  # of parameters, state and staged pushes
    limit_bytes: Total
