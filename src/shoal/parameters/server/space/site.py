"""What a job's space needs of its server: messages to others, memory limits, a second thread."""

from __future__ import annotations

from typing import Protocol

from shoal.parameters.blocks.memory_budget import MemoryBudget
from shoal.parameters.server.space.background import Background
from shoal.wire.note import Note


class Site(Protocol):
    number: int  # of the server
    budget: MemoryBudget
    background: Background

    def to_server(self, number: int, note: Note, payload: memoryview | bytes | None = None) -> None:
        """Send; dropped while there is no connection. The space is told of every new connection."""

    def to_keeper(self, note: Note) -> None: ...

    def filled(self) -> None:
        """A space may have all of its blocks now."""

    def crash_at(self, point: str) -> None:
        """For tests that kill a server at a certain point."""
