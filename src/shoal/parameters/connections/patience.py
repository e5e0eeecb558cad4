"""How long a peer may stay silent while this process waits for it. Pure: the caller gives the times.

A stopped process keeps its connections open, so that only its silence gives it away. After half of the limit, ask the
silent peer once for a sign of life; at the limit, give it up. Time in which this process itself did not run does not
count as silence.
"""

from __future__ import annotations

import enum

INTERVAL = 0.5  # seconds between two looks, at most


class Silence(enum.Enum):
    NONE = "none"
    ASK = "ask"  # for a sign of life
    LOST = "lost"  # the peer was silent for the whole limit


class Listening:
    """The silence of the peer at the other end of one connection."""

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit  # seconds
        self._heard = now  # when the peer last said something, or when waiting for it began
        self._looked = now
        self._is_asked = False

    def heard(self, now: float) -> None:
        """The peer said something, or nobody waits for it."""
        self._heard = now
        self._is_asked = False

    def look(self, now: float) -> Silence:
        """Call this at least once per `INTERVAL` while waiting for the peer."""
        self._heard += max(0.0, now - self._looked - 2 * INTERVAL)
        self._looked = now
        silence = now - self._heard
        if silence > self.limit:
            return Silence.LOST
        if silence > self.limit / 2 and not self._is_asked:
            self._is_asked = True
            return Silence.ASK
        return Silence.NONE
