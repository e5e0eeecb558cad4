"""Goodput: samples applied over those that the undisturbed rate would have applied in the same time. From the metrics.

The undisturbed rate is the median over stretches of about a second in which nothing was wrong and the job had its full
number of workers. The time is the clock's, from one applied step to the next, whichever worker applied them; time
between two loops counts only where training stood still, and pauses before a resume do not count. The time of steps
that were done again counts, but their samples count once. Pure but for `read_cost`.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.steps import AppliedSteps, MetricLine
from shoal.watch.record.incident import Incident
from shoal.watch.record.incidents import Incidents
from shoal.watch.record.lines import LineFile
from shoal.watch.record.series import LATE, METRICS

STRETCH = 1.0  # least seconds of steps for one measurement of the rate
MOST_STRETCHES = 4000  # when there are more, neighbours are joined into longer ones
MARGIN = 0.5  # seconds around incidents that count as disturbed; times in the metrics are off by half of that at most
LEAST_HELD = 0.5  # seconds by which a fault on purpose must hold up a step to be told


@dataclass(frozen=True)
class Course:
    """When the job was undisturbed, by its events. Times are seconds since 1970."""

    starts: tuple[float, ...] = ()  # of the job's goes
    stops: tuple[tuple[float, float], ...] = ()  # spans in which no step was applied, in order
    disturbed: tuple[tuple[float, float], ...] = ()  # the stops, and times with other faults or too few workers

    def is_disturbed(self, start: float, end: float) -> bool:
        return _overlaps(self.disturbed, start - MARGIN, end + MARGIN)

    def is_stopped(self, start: float, end: float) -> bool:
        return _overlaps(self.stops, start, end)

    def stopped(self, start: float, end: float) -> float:
        """Seconds between `start` and `end` in which no step was applied."""
        place = bisect.bisect_right(self.stops, (end, math.inf))
        total = 0.0
        while place > 0 and self.stops[place - 1][1] >= start:
            place -= 1
            total += max(0.0, min(end, self.stops[place][1]) - max(start, self.stops[place][0]))
        return total

    def go_at(self, time: float) -> int:
        """How many goes of the job had begun by then."""
        return bisect.bisect_right(self.starts, time)


@dataclass(frozen=True)
class Cost:
    """What incidents cost a job, as far as the metrics tell."""

    step_seconds: float = 0.0  # from one applied step to the next while undisturbed, the median; 0: not known
    undisturbed: float | None = None  # samples that the undisturbed rate gives in `seconds`; None: no such rate
    samples: int = 0  # of the applied steps, each step counted once
    seconds: float = 0.0  # inside loops, incidents included
    # By go of the job: applied steps that the go's first step took back, and their samples.
    taken_back: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    held: tuple[tuple[float, float], ...] = ()  # ends and lengths of steps that took long during a fault on purpose
    lasts: Mapping[int, float] = field(default_factory=dict)  # by go of the job: time of its last applied step

    def lost_to(self, incident: Incident) -> float:
        """Seconds that an incident cost beyond a normal step, because no step was applied or one took long."""
        if incident.is_stop:
            return incident.without_progress(self.step_seconds, last=self.lasts.get(incident.go))
        during = [
            length - self.step_seconds
            for time, length in self.held
            if incident.lasts and incident.time <= time and time - length <= incident.end
        ]
        return max((length for length in during if length >= LEAST_HELD), default=0.0)

    def redone_after(self, incident: Incident) -> tuple[int, int]:
        """Steps and samples redone after a crash, whose events may be some seconds behind the metrics."""
        told = incident.steps_redone, incident.samples_redone
        return max(told, self.taken_back.get(incident.go, told)) if incident.is_new_go else told

    @property
    def rate(self) -> float | None:
        """Samples per second of the whole job while undisturbed; None: it was never undisturbed."""
        return self.undisturbed / self.seconds if self.undisturbed is not None and self.seconds > 0 else None

    @property
    def goodput(self) -> float | None:
        """The goodput, at most 1; None: unknown."""
        return min(1.0, self.samples / self.undisturbed) if self.undisturbed else None


@dataclass
class _Stretch:
    seconds: float = 0.0
    samples: int = 0
    steps: int = 0

    def plus(self, other: _Stretch) -> _Stretch:
        return _Stretch(self.seconds + other.seconds, self.samples + other.samples, self.steps + other.steps)


class _Go:
    """One go of the job; goes may have different numbers of workers."""

    def __init__(self) -> None:
        self.seconds = 0.0  # inside loops
        self.last = 0.0  # time of the last applied step
        self.stretches: list[_Stretch] = []
        self._open = _Stretch()
        self._least = STRETCH

    def measure(self, seconds: float, samples: int) -> None:
        self._open = self._open.plus(_Stretch(seconds, samples, 1))
        if self._open.seconds >= self._least:
            self.stretches.append(self._open)
            self._open = _Stretch()
        if len(self.stretches) > MOST_STRETCHES:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=False)
            self.stretches = [first.plus(second) for first, second in pairs]
            self._least *= 2

    def finish(self) -> None:
        """End the present stretch. A short one before a disturbance is dropped, unless it is the only one."""
        if self._open.seconds >= self._least / 2 or (self._open.seconds > 0 and not self.stretches):
            self.stretches.append(self._open)
        self._open = _Stretch()


class Goodput:
    """`add` the lines of the metrics in their order, then `cost`."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._applied = AppliedSteps()
        self._goes: dict[int, _Go] = {}
        self._taken_back: dict[int, tuple[int, int]] = {}
        self._held: list[tuple[float, float]] = []

    def add(self, line: MetricLine) -> None:
        if line.is_outside:
            return
        number = self._course.go_at(line.time)
        is_first = number not in self._goes
        go = self._goes.setdefault(number, _Go())
        has_gap = not is_first and line.step > self._applied.last + 1  # a coordinator's death lost the lines between
        taken_back = self._applied.add_line(line)
        if is_first:
            self._taken_back[number] = taken_back
        since = line.time - line.seconds if is_first else go.last
        is_stopped = self._course.is_stopped(since, line.time)
        seconds, go.last = self._inside(line, since, has_gap=has_gap), line.time
        go.seconds += seconds
        if not (has_gap or taken_back[0] or self._course.is_disturbed(since, line.time)):
            go.measure(seconds, line.samples)
            return
        go.finish()
        if not is_stopped and seconds >= LEAST_HELD and len(self._held) < MOST_STRETCHES:
            self._held.append((line.time, seconds))

    def _inside(self, line: MetricLine, since: float, *, has_gap: bool) -> float:
        """Seconds since the previous step, without time between two loops that was no standstill."""
        stopped = self._course.stopped(since, line.time)
        trained = max(0.0, line.time - since - stopped)
        own = max(0.0, line.seconds - self._course.stopped(line.time - line.seconds, line.time))
        return stopped + (trained if has_gap or trained <= own + LATE else own)

    def cost(self) -> Cost:
        for go in self._goes.values():
            go.finish()
        known = [stretch for go in self._goes.values() for stretch in go.stretches]
        undisturbed = sum((_rate(go.stretches) or _rate(known) or 0.0) * go.seconds for go in self._goes.values())
        return Cost(
            step_seconds=statistics.median(stretch.seconds / stretch.steps for stretch in known) if known else 0.0,
            undisturbed=undisturbed if known else None,
            samples=self._applied.total,
            seconds=sum(go.seconds for go in self._goes.values()),
            taken_back=self._taken_back,
            held=tuple(self._held),
            lasts={number: go.last for number, go in self._goes.items()},
        )


def _rate(stretches: list[_Stretch]) -> float | None:
    """Samples per second."""
    return statistics.median(stretch.samples / stretch.seconds for stretch in stretches) if stretches else None


def _overlaps(spans: tuple[tuple[float, float], ...], start: float, end: float) -> bool:
    """Whether the span overlaps with one of these spans, which are sorted and disjoint."""
    place = bisect.bisect_right(spans, (end, math.inf))
    return place > 0 and spans[place - 1][1] >= start


def merged(spans: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The spans in order; spans that touch are joined."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def read_cost(run_dir: Path, course: Course) -> Cost:
    """Read the cost from a job's metrics; lines that cannot be read are left out."""
    goodput = Goodput(course)
    for line in LineFile(run_dir / METRICS, msgspec.json.Decoder(MetricLine)):
        goodput.add(line)
    return goodput.cost()


def course_of(incidents: Incidents, starts: list[float], thin: list[tuple[float, float]]) -> Course:
    """`thin`: when the job had fewer workers than at its best."""
    felt = [(incident.time, incident.end) for incident in incidents if incident.is_stop or incident.lasts]
    stops = incidents.stops
    return Course(tuple(sorted(starts)), merged(stops), merged([*stops, *felt, *thin]))
