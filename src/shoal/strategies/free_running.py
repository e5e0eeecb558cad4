"""The interface of a strategy whose workers run free: how each gets positions, and how all are brought together.

Nobody waits for another between updates. Positions in the data are leased, and count as used with the update that used
them (`Iteration.positions`). All workers meet when one of them calls; in a meeting nobody has an update under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.wire.ledger_entries import Granted, Told
from shoal.wire.tables import LoopTerms, Range


class FreeRunning(ABC):
    leases_ahead: bool  # a worker may hold its next lease before the present one is used up

    @property
    @abstractmethod
    def is_called(self) -> bool:
        """Whether all workers are called to a meeting that this one has not attended."""

    @abstractmethod
    def open_loop(self, terms: LoopTerms) -> None:
        """Say which loop this worker is in, and which of its positions are used already. Raises ExchangeFailed."""

    @abstractmethod
    def lease(self, updates: int, holds: Sequence[Range] = ()) -> Granted:
        """Get positions for about so many updates. `holds`: parts of earlier leases that are still in use.

        Raises ExchangeFailed.
        """

    @abstractmethod
    def await_turn(self) -> None:
        """Before an update: wait while this worker is too far ahead of others.

        Raises MeetingCalled where all are called to a meeting, and ExchangeFailed.
        """

    @abstractmethod
    def call(self, reason: str) -> None:
        """Call all workers to a meeting, at the end of their present update. Raises ExchangeFailed."""

    @abstractmethod
    def look(self, point: str) -> Told:
        """In a meeting: learn, as all others do, where the loop is, and take in the values as they are now.

        Raises ExchangeFailed.
        """

    @abstractmethod
    def rejoin(self) -> None:
        """This worker is in a new generation: requests that it made in the last one were given up.

        Raises ExchangeFailed.
        """
