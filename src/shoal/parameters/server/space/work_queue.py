"""The work that a server still has to do on its blocks, in the order of the ledger, one unit at a time. Pure.

Tells how far each unit is: an entry that changes no block counts as applied when all earlier entries are. Not here:
doing the work (`space`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from shoal.parameters.ledger.effects import Begun, Replace, Update

Work = Update | Replace | Begun


class WorkQueue:
    """Units of the head are done in order, from 0 on."""

    def __init__(self) -> None:
        self.updates = 0  # number of updates in the blocks, not counting the head's
        self.done = 0  # units of the head that are done
        self._queue: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._queue)

    @property
    def head(self) -> Work | None:
        return self._queue[0] if self._queue else None

    def add(self, work: Work) -> None:
        self._queue.append(work)

    def finish(self) -> Work:
        """Remove the head, which is done in all units."""
        work = self._queue.popleft()
        self.done = 0
        if not isinstance(work, Begun):
            self.updates = work.updates
        return work

    def clear(self, updates: int) -> None:
        """Forget all work; the blocks include, or will include, so many updates."""
        self._queue.clear()
        self.done, self.updates = 0, updates

    def applied(self, newest: int) -> int:
        """Number of the last entry that is in all units; `newest` is the number of the ledger's last entry."""
        return self._queue[0].number - 1 if self._queue else newest

    def touched(self, newest: int) -> int:
        """Number of the last entry that is in any unit."""
        return self._queue[0].number if self.done else self.applied(newest)

    def unit_applied(self, unit: int, newest: int) -> int:
        """Number of the last entry that is in this unit."""
        if unit < self.done:
            following = self._queue[1].number - 1 if len(self._queue) > 1 else newest
            return max(self._queue[0].number, following)
        return self.applied(newest)

    def unit_updates(self, unit: int) -> int:
        """Number of updates that are in this unit."""
        if unit < self.done:
            head = self._queue[0]
            assert not isinstance(head, Begun), "a new map changes all units at once"
            return head.updates
        return self.updates
