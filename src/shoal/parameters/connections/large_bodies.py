"""Memory for messages whose bodies are large, shared by the connections of one job: who finds none left waits. Pure.

What a body's head announces is not believed with memory of its own for every connection that says so. Not here: bytes
(`note_reader`), and how a connection waits (`connection`).
"""

from __future__ import annotations

from typing import Protocol

MOST_BYTES = 128 * 1024 * 1024  # at once, for all connections of a job


class Asking(Protocol):
    """A connection."""

    def let_grow(self) -> None:
        """There is room for the body that it has asked for."""


class LargeBodies:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._granted: dict[Asking, int] = {}  # bytes
        self._waiting: dict[Asking, int] = {}  # in order of arrival

    def ask(self, connection: Asking, size: int) -> bool:
        """False: it waits, and hears of it (`let_grow`). One body is taken however large it is."""
        if self._waiting or (self._granted and sum(self._granted.values()) + size > self._most):
            self._waiting[connection] = size
            return False
        self._granted[connection] = size
        return True

    def done(self, connection: Asking) -> None:
        """It needs no more room, or is gone. Safe to call for one that has none."""
        self._waiting.pop(connection, None)
        if self._granted.pop(connection, None) is None:
            return
        waiting, self._waiting = self._waiting, {}
        for other, size in waiting.items():
            if self._waiting or not self.ask(other, size):
                self._waiting[other] = size  # in their order
            else:
                other.let_grow()
