"""Time as the membership core counts it: the clock stands still while decisions cannot be announced. Pure.

While a full disk holds decisions back, members cannot answer what they have not heard. A running clock would make them
look late, silent or hung.
"""

from __future__ import annotations

from shoal.events import ConnectionIntercepted, StorageFailed
from shoal.membership.record.storage import StorageEvent


class JobClock:
    def __init__(self) -> None:
        self._held_at: float | None = None  # since when the clock stands still, by the caller's clock
        self.stood_still = 0.0  # seconds in total, without the present standstill

    def at(self, now: float) -> float:
        """The core's time when the caller's is `now`."""
        return (now if self._held_at is None else self._held_at) - self.stood_still

    def heed(self, event: StorageEvent | ConnectionIntercepted, now: float) -> None:
        """Stop the clock at a failure that holds decisions up; start it when the file can be written again."""
        if isinstance(event, ConnectionIntercepted):
            return
        if event.holds_up and isinstance(event, StorageFailed):
            self._held_at = now if self._held_at is None else self._held_at
        elif event.holds_up:
            self.go_on(now)

    def go_on(self, now: float) -> None:
        if self._held_at is not None:
            self.stood_still += now - self._held_at
            self._held_at = None
