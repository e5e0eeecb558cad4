"""Which events are written: all, except that of each worker's `steps-applied` only one is kept every few seconds. Pure.

Watchers get every event as it happens, and every step has its line in the metrics; in the record of events so many
reports would hide the rest. A report that is held back is written at the end of the job, before a loop begins, so that
the record says at which step it began, and before a generation forms, so that no worker seems to have worked in a
generation that it was left out of. Reports carry totals, so the next one makes up for one that is never written.
"""

from __future__ import annotations

import math

import msgspec

from shoal.events import GenerationFormed, JobEnded, JobStarted, LoopStarted, Record, StepsApplied

INTERVAL = 5.0  # seconds between two written events about a worker's steps, at most
SHORTEST = 0.5  # the same, at least
PART = 0.05  # of the job's time so far between two written events: the most that a crash takes from the totals


class Thinning:
    def __init__(self, *, began: float | None = None) -> None:
        """`began`: when the job started, where an earlier coordinator wrote that."""
        self._began = -math.inf if began is None else began
        self._now = 0.0  # time of the last event
        self._held: dict[int, StepsApplied] = {}  # by worker
        self._written: dict[int, float] = {}  # by worker: when a report was last written

    def take(self, record: Record) -> list[Record]:
        """What to write after this event, in order of time."""
        event, self._now = record.event, record.time
        if isinstance(event, StepsApplied):
            held = self._held.get(event.worker)
            self._held[event.worker] = event if held is None else newest(held, event)
            return self._due()
        if isinstance(event, JobStarted):
            self._began = record.time
        is_new_loop = isinstance(event, LoopStarted) and event.first_epoch == 0
        is_turn = is_new_loop or isinstance(event, JobEnded | GenerationFormed)
        return [*(self.rest() if is_turn else self._due()), record]

    def rest(self) -> list[Record]:
        """All reports that are held back."""
        return [self._release(worker) for worker in tuple(self._held)]

    def _due(self) -> list[Record]:
        """Clocks may be set back: a report that seems to be from the future is due too."""
        interval = min(INTERVAL, max(SHORTEST, PART * (self._now - self._began)))
        return [
            self._release(worker)
            for worker in tuple(self._held)
            if not 0 <= self._now - self._written.get(worker, -math.inf) < interval
        ]

    def _release(self, worker: int) -> Record:
        self._written[worker] = self._now
        return Record(time=self._now, event=self._held.pop(worker))


def newest(held: StepsApplied, event: StepsApplied) -> StepsApplied:
    """The newer of two reports of one worker; a new connection may repeat an old one."""
    if event.seconds < held.seconds:
        return held
    return msgspec.structs.replace(event, values={**held.values, **event.values})
