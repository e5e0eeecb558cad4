"""Which events are written: all, but `steps-applied` of each worker added up over a few seconds. Pure.

Watchers get every event as it happens, and every step has its line in the metrics; in the record of events so many
reports would hide the rest. What is held back is written at the end of the job, before a loop begins, so that whoever
reads the record knows at which step that was, and before a generation, so that nobody seems to have worked in one that
it was left out of.
"""

from __future__ import annotations

import math

from shoal.events import GenerationFormed, JobEnded, LoopStarted, Record, StepsApplied

INTERVAL = 5.0  # seconds between two written events about a worker's steps


class Thinning:
    def __init__(self) -> None:
        self._now = 0.0  # time of the last event
        self._held: dict[int, StepsApplied] = {}  # by worker
        self._written: dict[int, float] = {}  # by worker: when one was last written

    def take(self, record: Record) -> list[Record]:
        """What to write now that this happened, in order of time."""
        event, self._now = record.event, record.time
        if isinstance(event, StepsApplied):
            held = self._held.get(event.worker)
            self._held[event.worker] = event if held is None else together(held, event)
            return self._due()
        is_new_loop = isinstance(event, LoopStarted) and event.first_epoch == 0
        is_turn = is_new_loop or isinstance(event, JobEnded | GenerationFormed)
        return [*(self.rest() if is_turn else self._due()), record]

    def rest(self) -> list[Record]:
        """Everything that is held back."""
        return [self._release(worker) for worker in tuple(self._held)]

    def _due(self) -> list[Record]:
        """Clocks may be set back: what seems to be from the future is due too."""
        return [
            self._release(worker)
            for worker in tuple(self._held)
            if not 0 <= self._now - self._written.get(worker, -math.inf) < INTERVAL
        ]

    def _release(self, worker: int) -> Record:
        self._written[worker] = self._now
        return Record(time=self._now, event=self._held.pop(worker))


def together(earlier: StepsApplied, later: StepsApplied) -> StepsApplied:
    """Two reports of one worker as one."""
    return StepsApplied(
        worker=later.worker,
        generation=later.generation,
        step=later.step,
        epoch=later.epoch,
        samples=earlier.samples + later.samples,
        seconds=earlier.seconds + later.seconds,
        shares=earlier.shares.plus(later.shares),
        bytes_sent=earlier.bytes_sent + later.bytes_sent,
        bytes_shared=earlier.bytes_shared + later.bytes_shared,
        values={**earlier.values, **later.values},
        value_samples=later.value_samples,
    )
