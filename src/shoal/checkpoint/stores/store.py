"""Where checkpoints are kept: the interface. Names are relative, with `/` between parts; values are whole files.

A file is there whole or not at all, and once `write` has returned it survives a crash of the machine. Files of several
writers may appear in any order: the manifest, written last, makes a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

Buffer = bytes | bytearray | memoryview


class Store(ABC):
    """One job's checkpoints. Methods retry failures that may pass, and raise OSError if the store fails for good."""

    place: str  # for people: a folder or a URL

    @abstractmethod
    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Create or replace a file. What was written is durable on return; on failure nothing of it is left."""

    @abstractmethod
    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        """A file's bytes, or those from `start` up to `end`. FileNotFoundError if there is no such file."""

    @abstractmethod
    def size(self, name: str) -> int:
        """A file's size in bytes. FileNotFoundError if there is no such file."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Names directly under a folder, sorted and relative to it; [] if there is no such folder."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
