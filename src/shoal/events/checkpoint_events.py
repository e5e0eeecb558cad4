"""What happens to checkpoints and to the disk that they are on."""

from __future__ import annotations

from shoal.bounds import Count, Items, Name, Ordinal, Text, Total
from shoal.events.event import Event


class CheckpointStarted(Event, frozen=True, tag="checkpoint-started"):
    """The state of this step is being copied and written; sent by rank 0 only."""

    checkpoint: Name  # its name
    step: Count
    reason: Text
    is_last: bool = False  # the job waits for it


class CheckpointDeferred(Event, frozen=True, tag="checkpoint-deferred"):
    """One was due and is made later; sent by rank 0 only."""

    step: Count
    reason: Text


class CheckpointPublished(Event, frozen=True, tag="checkpoint-published"):
    checkpoint: Name
    step: Count
    size: Total  # bytes of all parts
    seconds: float  # from the copy to the publication
    blocked: float  # seconds that training was held up, on the worker where that was longest
    removed: Items[Name]  # older ones that made room
    reason: Text
    mark: Name = ""  # moves here from the checkpoint that had it; marked ones are kept


class CheckpointMarked(Event, frozen=True, tag="checkpoint-marked"):
    """A checkpoint that was there already has got a mark, which another may have lost by that; sent by rank 0 only."""

    checkpoint: Name
    step: Count
    mark: Name


class CheckpointLost(Event, frozen=True, tag="checkpoint-lost"):
    """One could not be written whole. Training goes on, and the next one will be tried."""

    checkpoint: Name
    step: Count
    worker: Ordinal | None  # whose part failed; None: the coordinator could not publish it
    reason: Text


class CheckpointRefused(Event, frozen=True, tag="checkpoint-refused"):
    """A job that is resumed cannot use this one and looks at the one before."""

    checkpoint: Name
    file: Name  # name within the checkpoint; empty where it is none in particular
    reason: Text


class Resumed(Event, frozen=True, tag="resumed"):
    """The job goes on from a checkpoint; sent by rank 0 only."""

    checkpoint: Name
    step: Count
    workers: Ordinal  # how many wrote it
    reason: Text


class StorageFailed(Event, frozen=True, tag="storage-failed"):
    """The coordinator cannot write a file of the run directory; said when that begins, and again while it lasts."""

    file: Name  # path
    free: Total | None  # bytes that its disk has left; None: the disk does not say
    holds_up: bool  # decisions wait for it: nobody is let in, replaced or put out meanwhile
    reason: Text  # with what to do about it


class StorageRestored(Event, frozen=True, tag="storage-restored"):
    """The file can be written again, and nothing that waited for it is lost, unless `reason` says so."""

    file: Name
    seconds: float  # that it could not be written
    holds_up: bool  # decisions waited for it
    reason: Text
