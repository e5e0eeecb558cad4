"""Where checkpoints are kept: the interface. Names are relative, with `/` between parts; values are whole files.

A file is there whole or not at all, and stays when `write` has returned, whatever happens to the machine then. Nothing
is promised about the order in which several writers' files appear: the manifest, written last, makes a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

Buffer = bytes | bytearray | memoryview


class Store(ABC):
    """One job's checkpoints. Every method raises OSError where the store fails for good; it retries what may pass."""

    place: str  # for people: a folder or a URL

    @abstractmethod
    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Create or replace a file. What was written is durable on return; on failure nothing of it is left."""

    @abstractmethod
    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        """A file's bytes, or those from `start` up to `end`. FileNotFoundError where there is none."""

    @abstractmethod
    def size(self, name: str) -> int:
        """A file's size in bytes. FileNotFoundError if there is no such file."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Names directly under a folder, sorted and relative to it; [] if there is no such folder."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
