"""What a job's ledger says after some entry: values that servers, workers and people ask for. Pure.

Not here: how entries change it (`ledger`).
"""

from __future__ import annotations

import msgspec

from shoal.bounds import ByNumber, Count, ItemList, Members, Name, Ordinal, OrdinalOrNone, Text, Total
from shoal.parameters.ledger.clocks import Clocks
from shoal.parameters.ledger.effects import MayRead
from shoal.parameters.ledger.leases import Leases
from shoal.wire.ledger_entries import AnyAnswer, Lease, Proposal, Push, Reason

MOST_STALE = 255  # staleness from which on updates are counted together


class Request(msgspec.Struct):
    """The newest one of a worker."""

    number: Count
    answer: AnyAnswer | None = None  # None: it waits


class LedgerState(msgspec.Struct):
    """The state after entry `number`."""

    number: Total = 0  # entries count from 1
    view: Ordinal = 0  # version of the server map
    origin: Ordinal = 0  # view that it began with: one that is begun after all servers were lost has a later one
    generation: OrdinalOrNone = -1
    workers: Members[Ordinal] = ()  # of the generation, in the order of their ranks
    mode: Name = ""
    staleness: Count | None = None
    scaling: Name = "lr"
    updates: Total = 0  # applied so far, with those that first values stand for
    base: Total = 0  # of those, the updates that the values stood for when they were last assigned
    used: Total = 0  # asynchronous: samples that the updates since have used
    has_values: bool = False  # somebody has assigned some
    meetings: Total = 0
    calling: Reason = ""  # why the newest meeting was called
    meetings_before: Total = 0  # that were called before this generation
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    leases: Leases | None = None
    waiting: ItemList[Lease] = msgspec.field(default_factory=list)  # in order of arrival
    open_pushes: ByNumber[Push] = msgspec.field(default_factory=dict)  # synchronous, of one step, by worker
    last_step: Count | None = None  # newest step that was applied to the present values
    steps: ByNumber[Count] = msgspec.field(default_factory=dict)  # the newest that was applied, by generation
    withdrawn: Count | None = None  # this step of the generation and those before it will not be applied any more
    requests: ByNumber[Request] = msgspec.field(default_factory=dict)  # by worker
    ended: Text = ""  # why nothing is decided any more; empty: it is
    histogram: ItemList[Total] = msgspec.field(default_factory=list)  # updates by their staleness

    def has_seen(self, worker: int, request: int) -> bool:
        """This request, or a later one of the worker, is in the ledger."""
        newest = self.requests.get(worker)
        return newest is not None and request <= newest.number

    def answer_to(self, worker: int, request: int) -> AnyAnswer | None:
        """None: it has none yet, or a later request has taken its place."""
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
        """Why the ledger does not hear this worker; empty: it does."""
        generation = getattr(entry, "generation", self.generation)
        if generation != self.generation:
            return f"worker {entry.worker} speaks of generation {generation}; the present one is {self.generation}"
        if entry.worker not in self.workers:
            return f"worker {entry.worker} is not in generation {self.generation}"
        return ""

    def count(self, staleness: int) -> None:
        """One more update of this staleness."""
        staleness = min(staleness, MOST_STALE)
        self.histogram += [0] * (staleness + 1 - len(self.histogram))
        self.histogram[staleness] += 1
