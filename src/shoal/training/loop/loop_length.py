"""How long a loop over data is, in batches and in steps, while the number of workers stays what it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.data.dealing import Dealing, count_steps
from shoal.training import texts
from shoal.training.loop.loop_task import LoopTask
from shoal.values import Cursor
from shoal.wire.tables import Range


@dataclass(frozen=True)
class LoopPlace:
    """Where a loop is."""

    first_step: int  # steps that the job had applied when the loop began
    step: int  # steps that the job has applied now
    cursor: Cursor
    gaps: tuple[Range, ...] = ()  # positions before the cursor that are still to be used


@dataclass(frozen=True)
class LoopLength:
    task: LoopTask
    dealing: Dealing

    @property
    def steps_per_epoch(self) -> int | None:
        """None where the number of samples is not known."""
        return self.task.feed.steps(self.dealing)

    @property
    def epochs(self) -> int:
        """Epochs of the whole loop, nested or not; where only steps limit it, as many as those steps take."""
        if self.task.total_epochs:
            return self.task.total_epochs
        return -(-(self.task.steps or 1) // self.steps_per_epoch) if self.steps_per_epoch else 1

    def batches(self) -> int:
        """Batches of each worker, over all epochs."""
        task, per_epoch = self.task, self.steps_per_epoch
        if per_epoch is None and (task.steps is None or task.total_epochs is not None):
            raise TypeError(texts.STREAM_WITHOUT_LENGTH)
        steps = task.steps if per_epoch is None else per_epoch * task.epochs
        assert steps is not None
        return min(steps, task.steps or steps) * task.accumulate

    def end(self, place: LoopPlace) -> int | None:
        """Steps that the job will have applied when the loop is over; None where that is not known."""
        feed, task, per_epoch = self.task.feed, self.task, self.steps_per_epoch
        limit = None if task.steps is None else place.first_step + task.steps
        if per_epoch is None or feed.samples is None:
            return limit
        epochs = (task.total_epochs or task.first_epoch + task.epochs) - place.cursor.epoch
        rest = max(0, feed.samples - place.cursor.position)
        # Gaps were whole updates of some worker: nothing of them is dropped.
        left = sum(count_steps(self.dealing, gap.size) for gap in place.gaps)
        if epochs > 0:
            left += (epochs - 1) * per_epoch + count_steps(self.dealing, rest, drop_last=feed.drop_last)
        end = place.step + left
        return end if limit is None else min(end, limit)
