"""How long somebody at the other end of a connection may say nothing while it is waited for. Pure: times are given.

A process that is stopped keeps its connections: only its silence tells. Whoever says nothing for half of the limit is
asked for a sign of life, once, and is given up when none has come at the end of it. Time in which this process itself
did not run is nobody's silence.
"""

from __future__ import annotations

import enum

INTERVAL = 0.5  # seconds between two looks, at most


class Silence(enum.Enum):
    NONE = "none"
    ASK = "ask"  # for a sign of life
    LOST = "lost"  # it has had its time


class Listening:
    """To one connection."""

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit  # seconds
        self._heard = now  # when it last said something, or began to be waited for
        self._looked = now
        self._is_asked = False

    def heard(self, now: float) -> None:
        """It said something, or nobody waits for it."""
        self._heard = now
        self._is_asked = False

    def look(self, now: float) -> Silence:
        """To be called at least once in `INTERVAL` while it is waited for."""
        self._heard += max(0.0, now - self._looked - 2 * INTERVAL)
        self._looked = now
        silence = now - self._heard
        if silence > self.limit:
            return Silence.LOST
        if silence > self.limit / 2 and not self._is_asked:
            self._is_asked = True
            return Silence.ASK
        return Silence.NONE
