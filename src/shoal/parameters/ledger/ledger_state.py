"""The state of a job's ledger after some entry: values that servers, workers and people ask for. Pure.

Not here: how entries change the state (`ledger`).
"""

from __future__ import annotations

import msgspec

from shoal.bounds import ByNumber, Count, ItemList, Members, Name, Ordinal, OrdinalOrNone, Text, Total
from shoal.parameters.ledger.clocks import Clocks
from shoal.parameters.ledger.effects import MayRead
from shoal.parameters.ledger.leases import Leases
from shoal.wire.ledger_entries import AnyAnswer, Lease, Proposal, Push, Reason

MOST_STALE = 255  # updates of this staleness or more are counted together


class Request(msgspec.Struct):
    """A worker's newest request."""

    number: Count
    answer: AnyAnswer | None = None  # None: the request waits


class LedgerState(msgspec.Struct):
    """The state after entry `number`."""

    number: Total = 0  # entries count from 1
    view: Ordinal = 0  # version of the server map
    origin: Ordinal = 0  # the ledger's first view; a ledger begun after all servers were lost has a later one
    generation: OrdinalOrNone = -1
    workers: Members[Ordinal] = ()  # of the generation, in the order of their ranks
    mode: Name = ""
    staleness: Count | None = None
    scaling: Name = "lr"
    updates: Total = 0  # applied so far, `base` included
    base: Total = 0  # updates that the values included when they were last assigned
    used: Total = 0  # asynchronous: samples used by the updates after `base`
    has_values: bool = False  # a worker has assigned values
    meetings: Total = 0
    calling: Reason = ""  # why the newest meeting was called
    meetings_before: Total = 0  # meetings called before this generation
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    leases: Leases | None = None
    waiting: ItemList[Lease] = msgspec.field(default_factory=list)  # in order of arrival
    open_pushes: ByNumber[Push] = msgspec.field(default_factory=dict)  # synchronous, of one step, by worker
    last_step: Count | None = None  # newest step that was applied to the present values
    steps: ByNumber[Count] = msgspec.field(default_factory=dict)  # newest step that was applied, by generation
    withdrawn: Count | None = None  # no step of the generation up to this one will be applied any more
    requests: ByNumber[Request] = msgspec.field(default_factory=dict)  # by worker
    ended: Text = ""  # why the ledger has ended; empty: it has not
    histogram: ItemList[Total] = msgspec.field(default_factory=list)  # updates by their staleness

    def has_seen(self, worker: int, request: int) -> bool:
        """This request, or a later one of the worker, is in the ledger."""
        newest = self.requests.get(worker)
        return newest is not None and request <= newest.number

    def answer_to(self, worker: int, request: int) -> AnyAnswer | None:
        """None: the request has no answer yet, or the worker has made a later one."""
        newest = self.requests.get(worker)
        return newest.answer if newest is not None and newest.number == request else None

    def may_read(self, worker: int, meetings: int) -> MayRead:
        """`meetings`: how many the worker has attended."""
        if self.staleness is None or worker not in self.clocks.by_worker:
            return MayRead.NOW
        if self.clocks.allows(worker, self.staleness):
            return MayRead.NOW
        return MayRead.MEET if self.meetings > meetings else MayRead.WAIT

    def strangeness(self, entry: Proposal) -> str:
        """Why an entry of this worker is void; empty: the worker is a member of the entry's generation."""
        generation = getattr(entry, "generation", self.generation)
        if generation != self.generation:
            return f"worker {entry.worker} speaks of generation {generation}; the present one is {self.generation}"
        if entry.worker not in self.workers:
            return f"worker {entry.worker} is not in generation {self.generation}"
        return ""

    def count(self, staleness: int) -> None:
        """Count one more update of this staleness."""
        staleness = min(staleness, MOST_STALE)
        self.histogram += [0] * (staleness + 1 - len(self.histogram))
        self.histogram[staleness] += 1
