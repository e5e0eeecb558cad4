"""Memory for large message bodies, shared by the connections of one job; a connection waits if none is left. Pure.

The bound holds for all connections of a job together, so that announcing large bodies on many connections does not take
memory for each of them. Not here: bytes (`note_reader`), and how a connection waits (`connection`).
"""

from __future__ import annotations

from typing import Protocol

MOST_BYTES = 128 * 1024 * 1024  # at once, for all connections of a job


class RoomSeeker(Protocol):
    """A connection that asks for room."""

    def let_grow(self) -> None:
        """Called when there is room for the body that this connection has asked for."""


class LargeBodies:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._granted: dict[RoomSeeker, int] = {}  # bytes
        self._waiting: dict[RoomSeeker, int] = {}  # in order of arrival

    def ask(self, connection: RoomSeeker, size: int) -> bool:
        """False: the connection waits until `let_grow` is called. A body of any size gets room if no other has any."""
        if self._waiting or (self._granted and sum(self._granted.values()) + size > self._most):
            self._waiting[connection] = size
            return False
        self._granted[connection] = size
        return True

    def done(self, connection: RoomSeeker) -> None:
        """This connection needs no more room, or is gone. Safe to call if it has none."""
        self._waiting.pop(connection, None)
        if self._granted.pop(connection, None) is None:
            return
        waiting, self._waiting = self._waiting, {}
        for other, size in waiting.items():
            if self._waiting or not self.ask(other, size):
                self._waiting[other] = size  # keep the order of arrival
            else:
                other.let_grow()
