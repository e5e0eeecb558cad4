"""The interface of a publisher, which makes a checkpoint of the parts that workers have written.

The coordinator decides when, and makes its calls one after the other from one thread. Implementation:
`checkpoint.published.store_publisher`, over any store; membership knows none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishRequest:
    checkpoint: str  # name; its shape has been checked
    files: tuple[str, ...]  # names within the checkpoint, by rank; checked to be plain file names
    mark: str  # label that moves to this checkpoint; empty for none


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    size: int  # bytes of all parts
    removed: tuple[str, ...]  # names of older checkpoints that were removed


class Publisher(ABC):
    @abstractmethod
    def publish(self, request: PublishRequest) -> PublishOutcome:
        """Check that the parts are one whole state and publish it; only then remove checkpoints that are too old.

        Raises OSError or ShoalError where the checkpoint is not published. Later failures leave it published.
        """

    @abstractmethod
    def discard(self, checkpoint: str) -> None:
        """Remove the files of an unpublished checkpoint, if there are any. May raise OSError."""

    @abstractmethod
    def clean(self) -> None:
        """Before a job goes on: remove what earlier runs left unpublished. May raise OSError."""
