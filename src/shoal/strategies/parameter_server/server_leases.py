"""What a worker knows of its job's ledger on the servers, and how workers run free by it.

Every answer of the servers says how far the ledger is: its number, the updates of all workers, the meetings that were
called. Not here: what is pushed and pulled (`parameter_server`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.errors import MeetingCalled, ParametersLost
from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.strategies.free_running import FreeRunning
from shoal.strategies.peers.peers import Peers
from shoal.wire.ledger_entries import Answer, Granted, Told
from shoal.wire.tables import LoopTerms, Range

Heard = TypeVar("Heard", bound=Answer)


@dataclass(frozen=True)
class LedgerTerms:
    """How the ledger should treat this job's updates."""

    is_free: bool  # each worker makes updates of its own
    staleness: int | None  # most clocks that a worker may be ahead of the slowest; None: any number
    scaling: str  # what staleness scales: lr, gradient or none


class LedgerView:
    def __init__(self, peers: Peers, client: ParameterClient, terms: LedgerTerms) -> None:
        self._peers = peers
        self._client = client
        self._terms = terms
        self._origin: int | None = None  # of the ledger that this worker enrolled in
        self._enrolled = 0  # newest generation that the servers were told of by this worker
        self._meetings = self._attended = 0  # that workers were called to; that this one has attended
        self.seen = 0  # number of the newest entry that this worker knows of
        self.updates = 0  # applied by all workers, as far as this one knows

    def enrol(self) -> None:
        """Tell the servers who is in the present generation, before anything of it counts."""
        generation = self._peers.generation
        if self._enrolled == generation.number:
            return
        terms = EnrolTerms(
            generation=generation.number,
            workers=tuple(sorted(member.worker for member in generation.members)),
            mode="asynchronous" if self._terms.is_free else "synchronous",
            staleness=self._terms.staleness,
            scaling=self._terms.scaling,
        )
        done = self._client.enrol(terms)
        # Enrolling works with any ledger: this worker must raise if the ledger is not the one that it knew. Numbers
        # only go up: one below a number that was seen means that entries were lost with servers.
        if self._origin not in (None, self._client.origin) or done.number < self.seen:
            raise ParametersLost.all()
        self._origin = self._client.origin
        self._enrolled = generation.number
        self.heard(done)
        self._attend(done.meetings)  # meetings that were called before this generation are over

    def heard(self, answer: Heard) -> Heard:
        self.seen, self.updates = max(self.seen, answer.number), max(self.updates, answer.updates)
        self.called(answer.meetings)
        return answer

    def called(self, meetings: int) -> None:
        """Workers were called to so many meetings so far."""
        self._meetings = max(self._meetings, meetings)

    @property
    def is_called(self) -> bool:
        """Whether all workers are called to a meeting that this one has not attended."""
        return self._meetings > self._attended

    def attended(self) -> None:
        """This worker is in the meeting to which all were called."""
        self._attend(self._meetings)

    def _attend(self, meetings: int) -> None:
        self._attended = max(self._attended, meetings)
        self._client.attended = self._attended


class Values(Protocol):
    """The parameters' values, as the servers have them."""

    def pull(self) -> None:
        """Ask for the newest values that this worker may have."""

    def settle(self) -> None:
        """Take in what was asked for. Raises ExchangeFailed."""

    def catch_up(self) -> None:
        """Take in what the servers have now, however far ahead this worker is. Raises ExchangeFailed."""


class ServerLeases(FreeRunning):
    def __init__(
        self, peers: Peers, client: ParameterClient, view: LedgerView, values: Values, *, is_bounded: bool
    ) -> None:
        """`is_bounded`: a worker that is too far ahead of the slowest waits for it."""
        self._peers = peers
        self._client = client
        self._view = view
        self._values = values
        self._is_bounded = is_bounded
        self.leases_ahead = not is_bounded

    @property
    def is_called(self) -> bool:
        return self._view.is_called

    def open_loop(self, terms: LoopTerms) -> None:
        self._client.open_loop(terms)

    def lease(self, updates: int, holds: Sequence[Range] = ()) -> Granted:
        self._view.enrol()
        with self._peers.interrupting(self._client.interrupt):
            return self._view.heard(self._client.lease(updates, holds))

    def await_turn(self) -> None:
        if not self._is_bounded:
            return
        try:
            with self._peers.interrupting(self._client.interrupt):
                self._values.settle()
        except MeetingCalled as called:
            self._view.called(called.meetings)
            raise

    def call(self, reason: str) -> None:
        self._view.heard(self._client.call(reason))

    def look(self, point: str) -> Told:
        """The first worker asks, and tells the others."""
        group = self._peers.group
        own = msgspec.msgpack.encode(self._view.heard(self._client.ask())) if group.rank == 0 else b""
        told = msgspec.msgpack.decode(broadcast_bytes(own, 0, group, label=f"{point}, where it is"), type=Told)
        self._view.heard(told)
        self._values.catch_up()
        self._view.attended()
        return told

    def rejoin(self) -> None:
        self._view.enrol()
        self._values.pull()
