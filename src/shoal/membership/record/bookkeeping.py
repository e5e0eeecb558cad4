"""What is written for each event: lines of events, lines of metrics, and what watchers are shown. Pure.

Combines which reports are written (`thinning`), the metrics (`metrics`), the standstills that follow from applied
steps (`standstills`), and warnings about files that several workers write (`truncations`). A restarted coordinator
continues the record of the last one. Not here: files (`event_writer`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from shoal import events
from shoal.events import Record
from shoal.membership.record.metrics import Metrics
from shoal.membership.record.standstills import Standstills
from shoal.membership.record.thinning import Thinning
from shoal.membership.record.truncations import Truncations
from shoal.steps import MetricLine

INSTANT = 1e-6  # seconds between an event and one that follows from it: no two events have the same time
LATEST = 9  # instants between two events of the core, at least


@dataclass
class Written:
    """What one event adds to the files and to the watchers' display, in order."""

    events: list[Record] = field(default_factory=list)
    metrics: list[MetricLine] = field(default_factory=list)
    shown: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class Before:
    """What an earlier coordinator of this run wrote: its newest lines, in order."""

    began: float | None = None  # when the run started
    events: Sequence[Record] = ()
    metrics: Sequence[MetricLine] = ()


class Bookkeeping:
    """For one run of a job. `take` every event; no two may have the same time."""

    def __init__(self, before: Before | None = None) -> None:
        before = before or Before()
        self._began = before.began
        self._thinning = Thinning(began=before.began)
        self._metrics = Metrics(before.metrics[-1] if before.metrics else None)
        self._standstills = Standstills()
        self._truncations = Truncations()
        self._told = 0.0  # time of the last event that was derived here
        self._is_told = False  # the loss of all parameters was noted in the present generation
        written: list[Sequence[Record | MetricLine]] = [before.events, before.metrics]
        for line in heapq.merge(*written, key=lambda line: line.time):
            if isinstance(line, Record):
                self._standstills.observe(line.event, line.time)
            else:
                self._standstills.apply(line)

    def take(self, record: Record) -> Written:
        event, written = record.event, Written()
        if isinstance(event, events.ParametersGone) and event.server is None:
            if self._is_told:  # another worker has reported it
                return written
            self._is_told = True
        if isinstance(event, events.FileTruncated):
            doubt = self._truncations.observe(event)
            if doubt is None:
                return written
            record = Record(record.time, doubt)
        if isinstance(event, events.JobStarted):
            self._began = record.time
        elif isinstance(event, events.StepsApplied):
            self._apply(self._metrics.add(event, record.time), record.time, written)
            record = Record(record.time, msgspec.structs.replace(event, rows=(), clock=msgspec.UNSET))
        elif isinstance(event, events.CoordinatorReturned):
            self._metrics.regroup(event.workers)
        elif isinstance(event, events.GenerationFormed):
            self._is_told = False
            self._apply(self._metrics.regroup(event.workers), record.time, written)
        elif isinstance(event, events.JobEnded):
            self._apply(self._metrics.finish(), record.time, written)
            if self._began is not None:  # the core of a restarted coordinator counts from its own start
                record = Record(record.time, msgspec.structs.replace(event, seconds=record.time - self._began))
        self._tell(self._standstills.observe(record.event, record.time), record.time, written)
        self._put(record, written)
        return written

    def rest(self) -> Written:
        """Everything that is held back: no more events will come."""
        written = Written(metrics=self._metrics.finish())
        written.events += self._thinning.rest()
        return written

    def _apply(self, lines: list[MetricLine], time: float, written: Written) -> None:
        written.metrics += lines
        self._tell([resumed for line in lines for resumed in self._standstills.apply(line)], time, written)

    def _tell(self, resumed: list[events.ProgressResumed], time: float, written: Written) -> None:
        """Put derived events just before the event that they follow from."""
        for each in resumed:
            self._told = max(self._told + INSTANT, time - LATEST * INSTANT)
            self._put(Record(self._told, each), written)

    def _put(self, record: Record, written: Written) -> None:
        written.shown.append(record)
        written.events += self._thinning.take(record)
