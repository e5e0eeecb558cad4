"""The interface of a feed: a source of batches that can be entered at any cursor with any dealing.

A feed keeps nothing that a step depends on: what `batches` yields follows from its two arguments. After a
regrouping the loop closes the iterator and asks again. Implementations: `map_feed` for random access, `stream_feed` for
streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Self

from shoal.data.dealing import BatchPart, Dealing, count_steps
from shoal.data.fingerprint import Fingerprint
from shoal.values import Cursor


@dataclass(frozen=True)
class Batch:
    """One worker's batch. `step_samples`, `is_last` and `cursor_after` are the same on every worker."""

    data: Any  # collated
    samples: int  # this worker's real samples in it; 0: a stand-in, real data that must not count
    step_samples: int  # real samples of the whole step: all workers, all of its batches
    is_last: bool  # of the step's `accumulate` batches
    cursor_after: Cursor  # once the step is applied; at the end of an epoch its epoch is still the old one

    @classmethod
    def of(cls, part: BatchPart, data: Any, *, epoch: int) -> Self:
        return cls(
            data=data,
            samples=part.samples,
            step_samples=part.step_samples,
            is_last=part.is_last,
            cursor_after=Cursor(epoch=epoch, position=part.position_after),
        )


class Feed(ABC):
    samples: int | None  # per epoch; None: unknown. A stream may end earlier or later than it announced.
    batch_size: int  # per worker
    order: str  # how samples are ordered, in words; feeds whose orders differ have different samples at a position
    drop_last: bool  # an incomplete last batch over all workers is left out
    loads_ahead = 0  # batches that are being loaded before they are asked for
    own_data = False  # each worker was given data of its own, on purpose: samples are not compared
    files: tuple[str, ...] = ()  # names of the files that hold the samples, where the data are a list of files
    is_stream = False  # samples can be had in their order only
    is_one_shot = False  # and only once

    @abstractmethod
    def batches(self, cursor: Cursor, dealing: Dealing, stop: int | None = None) -> Generator[Batch, None, None]:
        """Batches from the cursor to the end of its epoch, or up to `stop` if the feed can be entered anywhere.

        Closing the generator ends the processes that load for it. With `stop` the processes stay for the next stretch,
        until `close` or until batches without `stop` are asked for.
        """

    def foresee(self, cursor: Cursor, dealing: Dealing, stop: int) -> None:  # noqa: B027  most feeds need no hint
        """Hint while batches up to a `stop` are taken: the loop will most likely ask for this stretch next."""

    @abstractmethod
    def fingerprint(self, cursor: Cursor, *, anew: bool = False) -> Fingerprint:
        """What this worker was given, for comparing it with the others'. Uses nothing up.

        A stream's samples are those at the cursor; data with random access have the same at every cursor. `anew`: read
        the samples again, so that hashes which change show. May raise DataError.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is kept from one call to the next: loader processes, an open stream."""

    def steps(self, dealing: Dealing) -> int | None:
        """Steps per epoch, where the number of samples is known."""
        return None if self.samples is None else count_steps(dealing, self.samples, drop_last=self.drop_last)
