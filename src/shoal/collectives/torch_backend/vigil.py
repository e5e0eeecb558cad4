"""Whether silent ranks on other machines are at work, stopped or cut off.

Connections show that a machine vanished or a process ended, but not that a process is stopped: its machine still
answers for it. So while an operation hangs, this module asks the listeners of the remote ranks. A thread of each
process answers, whatever else the process does, unless the process holds Python's lock all the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.transport.tcp.probe import reachable
from shoal.transport.tcp.tcp import PeerListener
from shoal.values import Address

INTERVAL = 1.0  # seconds between two questions, and before the first
LIMIT = 5.0  # seconds of silence after which a rank counts as lost: the heartbeat limit


@dataclass
class Silences:
    """Since when ranks have not answered. Pure."""

    limit: float
    since: dict[int, float] = field(default_factory=dict)  # by rank, for ranks that did not answer the last question

    def observe(self, asked: Mapping[int, object], answered: set[int], when: tuple[float, float]) -> int | None:
        """A rank that has been silent for too long, if any. `when`: when asking began and when it ended."""
        self.since = {rank: self.since.get(rank, when[0]) for rank in asked if rank not in answered}
        silent = [rank for rank, start in self.since.items() if when[1] - start >= self.limit]
        return min(silent, key=self.since.__getitem__) if silent else None

    def forget(self) -> None:
        """Nothing hangs any more."""
        self.since.clear()


class Vigil:
    """One group's watch over its remote ranks. Its listener lets them watch this rank."""

    def __init__(self, listener: PeerListener, addresses: Mapping[int, Address]) -> None:
        """The vigil owns the listener from now on. `addresses`: of the remote ranks' listeners, by rank."""
        self._listener = listener
        self._addresses = dict(addresses)
        self._silences = Silences(LIMIT)

    def lost(self, stalled: float) -> int | None:
        """A rank that has not answered for too long. `stalled`: seconds for which an operation has hung."""
        if stalled < INTERVAL:
            self._silences.forget()
            return None
        asked = time.monotonic()
        answered = reachable(self._addresses, self._listener.token, INTERVAL)
        return self._silences.observe(self._addresses, answered, (asked, time.monotonic()))

    def close(self) -> None:
        self._listener.close()
