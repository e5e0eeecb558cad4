"""What one loop over data is to do."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.data.feed import Feed


@dataclass(frozen=True)
class LoopTask:
    feed: Feed
    first_epoch: int
    epochs: int  # how many, from first_epoch on
    total_epochs: int | None  # for the progress display; None: as many as the limit of steps takes
    accumulate: int
    steps: int | None = None  # the loop ends after so many steps, wherever it is in its data
