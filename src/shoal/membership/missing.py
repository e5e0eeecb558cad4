"""Saying from time to time that some workers wait for others that have not come. Pure."""

from __future__ import annotations

from collections.abc import Collection

INTERVAL = 10.0  # seconds between two notices


class MissingNotice:
    """Scripts of which nobody joins are not waited for."""

    def __init__(self, workers: int, *, now: float) -> None:
        self._workers = workers
        self._since = now  # when it was last said, or nobody waited

    def due(self, here: Collection[int], now: float) -> str | None:
        """What to say now, if anything; `here` are the workers that have joined."""
        missing = [number for number in range(self._workers) if number not in here]
        if not here or not missing:
            self._since = now
        elif now - self._since >= INTERVAL:
            self._since = now
            return f"waiting for worker {missing[0]}: {len(here)} of {self._workers} workers are here"
        return None
