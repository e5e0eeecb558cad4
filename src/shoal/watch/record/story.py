"""A job's events reduced to what `shoal show` and the report tell, one event at a time and in bounded memory. Pure.

Builds on `board`, which has the workers' sums and the present loop. Steps that a resume rewinds are forgotten too.
Not here: reading the file (`record`) and per-step values (`series`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shoal import events
from shoal.watch.board import Board, WorkerState, mean_rate
from shoal.watch.record.goodput import Course, course_of
from shoal.watch.record.incidents import Incidents
from shoal.watch.record.machine_use import UseOverTime
from shoal.watch.record.machines import Machines
from shoal.watch.record.series import Series
from shoal.watch.record.timeline import Timeline
from shoal.watch.record.tracks import EpochTrack

MOST_CHECKPOINTS = 500  # rows; the newest are kept
MOST_SCORES = 100  # names of held-out scores


@dataclass
class Span:
    """One go of the job: from a start to its end or to the next start."""

    start: float  # seconds since 1970
    end: float  # time of its last event


@dataclass(frozen=True)
class Checkpoint:
    name: str
    step: int
    time: float  # of its last news, seconds since 1970
    state: Literal["being written", "published", "removed", "lost"]
    reason: str  # why the checkpoint was made or, if it was lost, why that happened
    size: int = 0  # bytes
    seconds: float = 0.0  # from the copy to the publication
    blocked: float = 0.0  # seconds that training was held up
    marks: tuple[str, ...] = ()  # that it has now

    @property
    def mark(self) -> str:
        return ", ".join(self.marks)


class Story:
    """`add` records in order, then read the fields."""

    def __init__(self) -> None:
        self.board = Board()  # of the last start
        self._earlier: dict[int, WorkerState] = {}  # sums over all starts but the last
        self.timeline = Timeline()
        self.incidents = Incidents()
        self.sizes: list[tuple[float, int]] = []  # time and size of each generation
        self.started: events.JobStarted | None = None  # the last start
        self.settings: dict[str, object] = {}  # that the last start took over from its script
        self.ended: events.JobEnded | None = None  # of the last start
        self.failed: events.WorkerFailed | events.WorkerDied | None = None  # the first, of the last start
        self.spans: list[Span] = []
        self.resumes: list[events.Resumed] = []
        self.hosts: dict[int, str] = {}  # by worker
        self.step = 0  # applied steps, as far as reported
        self.rewound = 0.0  # time of the last resume
        self.scores: dict[str, Series] = {}  # held-out, by name
        self.epochs = EpochTrack()
        self.use = UseOverTime()
        self.machines = Machines()
        self.checkpoints: dict[str, Checkpoint] = {}  # in order of their last news
        self.published = 0
        self.lost = 0
        self.blocked = 0.0  # seconds that checkpoints held up training, in all

    def add(self, record: events.Record) -> None:
        event, time = record.event, record.time
        if isinstance(event, events.JobStarted):
            self._earlier = self.workers
            self.spans.append(Span(time, time))
            self.started, self.ended, self.failed = event, None, None
            self.settings = {}
        elif isinstance(event, events.Advised):
            self.settings.update(event.settings)
        if self.spans:
            self.spans[-1].end = max(self.spans[-1].end, time)
        self.board = self.board.apply(event, time)
        self.timeline.add(event, time)
        self.incidents.add(event, time)
        self.machines.add(event, time)
        self._take(event, time)
        self._take_measures(event, time)

    def elapsed(self, time: float) -> float:
        """Seconds that the job had run by `time`, without pauses between its goes."""
        total = 0.0
        for span in self.spans:
            if time <= span.start:
                break
            total += min(time, span.end) - span.start
        else:  # after the last event: metrics may be ahead of the events
            if self.spans:
                total += max(0.0, time - self.spans[-1].end)
        return total

    @property
    def workers(self) -> dict[int, WorkerState]:
        """Sums over all starts."""
        sums = dict(self._earlier)
        for worker, state in self.board.workers.items():
            sums[worker] = sums[worker].plus(state) if worker in sums else state
        return sums

    @property
    def most(self) -> int:
        """Members of the largest generation."""
        return max((size for _, size in self.sizes), default=0)

    @property
    def course(self) -> Course:
        """When the job was undisturbed, with as many workers as it ever had in that go."""
        starts = [span.start for span in self.spans]
        goes = [bisect.bisect_right(starts, time) for time, _ in self.sizes]
        most: dict[int, int] = {}
        for go, (_, size) in zip(goes, self.sizes, strict=True):
            most[go] = max(size, most.get(go, 0))
        ends = [*(time for time, _ in self.sizes), math.inf][1:]
        known = zip(goes, self.sizes, ends, strict=True)
        thin = [(time, end) for go, (time, size), end in known if size < most[go]]
        return course_of(self.incidents, starts, thin)

    @property
    def seconds(self) -> float:
        """How long the job has run, in all its goes."""
        return sum(span.end - span.start for span in self.spans)

    @property
    def samples_per_second(self) -> float:
        """Over all the time inside loops, in all goes of the job."""
        return mean_rate(self.workers, self.most)

    def _take(self, event: events.Event, time: float) -> None:
        match event:
            case events.StepsApplied() | events.ProgressResumed():
                self.step = self.board.step
            case events.GenerationFormed():
                self.sizes.append((time, len(event.workers)))
            case events.WorkerJoined():
                self.hosts[event.worker] = event.host
            case events.Evaluated():
                for name, value in event.scores.items():
                    if name in self.scores or len(self.scores) < MOST_SCORES:
                        self.scores.setdefault(name, Series()).add(event.step, time, value)
            case events.Resumed():
                self.step, self.rewound = event.step, time
                self.resumes.append(event)
                for series in self.scores.values():
                    series.rewind(event.step + 1)
            case events.WorkerFailed() | events.WorkerDied():
                self.failed = self.failed or event
            case events.JobEnded():
                self.ended = event
            case _:
                self._take_checkpoint(event, time)

    def _take_measures(self, event: events.Event, time: float) -> None:
        """Epochs done, and what workers use."""
        match event:
            case events.StepsApplied():
                self.use.add(event, time)
            case events.GenerationFormed():
                self.use.regroup(event.workers)
            case events.WorkerEquipped():
                self.hosts[event.worker] = event.host
            case events.LoopStarted():
                self.epochs.begin_loop(event.steps_per_epoch)
            case events.EpochEnded():
                self.epochs.end_epoch(event.step)
            case events.Resumed():
                self.epochs.rewind(event.step + 1)
                self.use.rewind(event.step + 1)
            case _:
                pass

    def _take_checkpoint(self, event: events.Event, time: float) -> None:
        match event:
            case events.CheckpointStarted():
                self._put(Checkpoint(event.checkpoint, event.step, time, "being written", event.reason))
            case events.CheckpointLost():
                self.lost += 1
                self._put(Checkpoint(event.checkpoint, event.step, time, "lost", event.reason))
            case events.CheckpointPublished():
                self.published += 1
                self.blocked += event.blocked
                made = Checkpoint(event.checkpoint, event.step, time, "published", event.reason)
                self._put(replace(made, size=event.size, seconds=event.seconds, blocked=event.blocked))
                if event.mark:
                    self._move(event.mark, event.checkpoint)
                for name in event.removed:
                    if name in self.checkpoints:
                        self.checkpoints[name] = replace(self.checkpoints[name], state="removed")
            case events.CheckpointMarked():
                self._move(event.mark, event.checkpoint)
            case _:
                pass

    def has_marks(self, marks: Mapping[str, str]) -> None:
        """These are the marks now, by label: `shoal checkpoints --mark` moves them without an event."""
        for name, made in self.checkpoints.items():
            self.checkpoints[name] = replace(made, marks=())
        for label, name in sorted(marks.items()):
            self._move(label, name)

    def _move(self, label: str, name: str) -> None:
        """A label marks one checkpoint: whichever had it has lost it."""
        for other, made in self.checkpoints.items():
            if label in made.marks and other != name:
                self.checkpoints[other] = replace(made, marks=tuple(mark for mark in made.marks if mark != label))
        if name in self.checkpoints and label not in self.checkpoints[name].marks:
            made = self.checkpoints[name]
            self.checkpoints[name] = replace(made, marks=(*made.marks, label))

    def _put(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.pop(checkpoint.name, None)
        self.checkpoints[checkpoint.name] = checkpoint
        if len(self.checkpoints) > MOST_CHECKPOINTS:
            del self.checkpoints[next(iter(self.checkpoints))]
