"""Time as the membership core counts it: it stands still while nobody can hear what is decided. Pure.

While a full disk holds decisions back, members do not answer what they have not heard. A clock that went on would make
them late, silent or hung.
"""

from __future__ import annotations

from shoal.events import ConnectionIntercepted, StorageFailed
from shoal.membership.record.storage import StorageEvent


class JobClock:
    def __init__(self) -> None:
        self._held_at: float | None = None  # the caller's time since which the clock stands still
        self.stood_still = 0.0  # seconds, in sum, until it last went on

    def at(self, now: float) -> float:
        """The core's time when the caller's is `now`."""
        return (now if self._held_at is None else self._held_at) - self.stood_still

    def heed(self, event: StorageEvent | ConnectionIntercepted, now: float) -> None:
        """Stand still from a failure that holds decisions up until the file can be written again."""
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
