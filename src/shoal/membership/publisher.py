"""Who makes a checkpoint of parts that workers have written: the interface.

The coordinator decides when, and calls it from one thread, one call after the other. Implementation:
`checkpoint.published.store_publisher`, over any store; membership knows none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishRequest:
    checkpoint: str  # its name; checked to be one
    files: tuple[str, ...]  # names within the checkpoint, by rank; checked to be plain
    mark: str  # label that moves to this checkpoint; empty for none


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    size: int  # bytes of all parts
    removed: tuple[str, ...]  # names of older checkpoints that are gone


class Publisher(ABC):
    @abstractmethod
    def publish(self, request: PublishRequest) -> PublishOutcome:
        """Check that the parts are one whole state and publish it; only then remove what is too old.

        Raises OSError or ShoalError where it is not published. What fails afterwards does not make it unpublished.
        """

    @abstractmethod
    def discard(self, checkpoint: str) -> None:
        """Remove the files of a checkpoint that is not published; fine where there are none. May raise OSError."""

    @abstractmethod
    def clean(self) -> None:
        """Before a job goes on: remove what earlier ones have left unpublished. May raise OSError."""
