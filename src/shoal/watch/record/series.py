"""Curves over steps, thinned while they are read: each is a couple of thousand points at most, however long the job.

A point stands for a range of steps and has the mean, least and greatest value in it. A resumed job goes on at or
before a step that is there already: the values after that step are dropped. Pure but for `read_curves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from shoal.steps import AppliedSteps, MetricLine
from shoal.watch.record.lines import LineFile
from shoal.watch.record.tracks import Track

METRICS = "metrics.jsonl"
MOST_POINTS = 2000  # of a series
MOST_NAMES = 200  # logged names that are drawn
LATE = 0.25  # seconds by which times in the metrics may be off
PART = 0.75  # of a step's time: the least length of a stretch whose speed is shown


@dataclass(frozen=True)
class Point:
    """The values of neighbouring steps as one."""

    step: int  # the last of them
    time: float  # of the last of them, seconds since 1970
    mean: float | None  # weighted; None: no value was finite
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Extreme:
    """The least or the greatest value of a curve."""

    value: float
    step: int  # the first that had it


@dataclass(slots=True)
class _Bucket:
    step: int
    time: float
    total: float = 0.0  # of value times weight
    weight: float = 0.0  # 0: no finite value
    low: float = math.inf
    high: float = -math.inf
    low_at: int = 0  # step
    high_at: int = 0
    not_finite: int = 0  # number of values that no curve can show

    def join(self, later: _Bucket) -> None:
        self.step, self.time = later.step, later.time
        self.total += later.total
        self.weight += later.weight
        if later.low < self.low:
            self.low, self.low_at = later.low, later.low_at
        if later.high > self.high:
            self.high, self.high_at = later.high, later.high_at
        self.not_finite += later.not_finite

    def point(self) -> Point:
        if self.weight == 0:
            return Point(self.step, self.time, None, None, None)
        return Point(self.step, self.time, self.total / self.weight, self.low, self.high)


class Series:
    """One curve. Buckets are ranges of steps whose width doubles when there are too many of them."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.width = 1  # steps that a point stands for
        self._most = most
        self._buckets: list[_Bucket] = []  # by step
        self._newest: _Bucket | None = None  # not in `_buckets` yet: the same step may come again and replace it

    def add(self, step: int, time: float, value: float | None, weight: float = 1.0) -> None:
        """Add a value. Values come in the order of steps; a value for an earlier step drops all from there on."""
        if self._newest is not None and step > self._newest.step:
            self._settle()
        else:
            self.rewind(step)
        bucket = _Bucket(step, time)
        if value is not None and math.isfinite(value):
            bucket.total, bucket.weight, bucket.low, bucket.high = value * weight, weight, value, value
            bucket.low_at = bucket.high_at = step
        else:
            bucket.not_finite = 1
        self._newest = bucket

    def rewind(self, step: int) -> None:
        """Forget everything from this step on, and earlier values that cannot be told apart from it."""
        if self._newest is not None and self._newest.step >= step:
            self._newest = None
        while self._buckets and self._buckets[-1].step >= step:
            self._buckets.pop()

    def points(self) -> list[Point]:
        """The points in the order of steps. The last one is at least half as wide as the others."""
        settled = [replace(bucket) for bucket in self._all()]
        while len(settled) > 1 and 2 * (settled[-1].step - settled[-2].step) < self.width:
            settled[-2].join(settled.pop())
        return [bucket.point() for bucket in settled]

    @property
    def last(self) -> Point | None:
        """The last value; directly after a rewind, the last point."""
        known = self._all()
        return known[-1].point() if known else None

    @property
    def least(self) -> Extreme | None:
        """None: no value was finite."""
        known = [bucket for bucket in self._all() if bucket.weight]
        lowest = min(known, key=lambda bucket: bucket.low, default=None)
        return None if lowest is None else Extreme(lowest.low, lowest.low_at)

    @property
    def greatest(self) -> Extreme | None:
        known = [bucket for bucket in self._all() if bucket.weight]
        highest = max(known, key=lambda bucket: bucket.high, default=None)
        return None if highest is None else Extreme(highest.high, highest.high_at)

    @property
    def not_finite(self) -> int:
        """How many values no curve can show."""
        return sum(bucket.not_finite for bucket in self._all())

    def _all(self) -> list[_Bucket]:
        return self._buckets if self._newest is None else [*self._buckets, self._newest]

    def _settle(self) -> None:
        assert self._newest is not None
        self._put(self._buckets, self._newest)
        while len(self._buckets) >= self._most:
            self.width *= 2
            wider: list[_Bucket] = []
            for bucket in self._buckets:
                self._put(wider, bucket)
            self._buckets = wider

    def _put(self, buckets: list[_Bucket], bucket: _Bucket) -> None:
        if buckets and (buckets[-1].step - 1) // self.width == (bucket.step - 1) // self.width:
            buckets[-1].join(bucket)
        else:
            buckets.append(bucket)


class SamplePace:
    """Samples and seconds by the clock, of steps that several workers may apply side by side."""

    def __init__(self) -> None:
        self._time = -math.inf  # of the last step
        self._seconds = 0.0  # since the last pace
        self._samples = 0

    def add(self, line: MetricLine) -> tuple[float, int] | None:
        """Seconds and samples since the last result, once that time is about as long as a step."""
        passed = max(0.0, line.time - self._time)
        self._time = line.time
        self._seconds += (
            passed if passed <= line.seconds + LATE else line.seconds
        )  # training took only `line.seconds` of it
        self._samples += line.samples
        if self._seconds < PART * line.seconds or self._seconds <= 0:
            return None
        pace, self._seconds, self._samples = (self._seconds, self._samples), 0.0, 0
        return pace


@dataclass
class Curves:
    """What a job logged, by name, and its speed."""

    values: dict[str, Series] = field(default_factory=dict)
    speed: Series = field(default_factory=Series)  # samples per second over all workers, while inside steps
    samples: Track = field(default_factory=Track)  # that had been used after each step
    left_out: set[str] = field(default_factory=set)  # names beyond the first `MOST_NAMES`; itself bounded
    step: int = 0  # the last applied one
    skipped: int = 0  # lines that could not be read
    problem: str = ""  # why the file could not be read to its end
    _pace: SamplePace = field(default_factory=SamplePace)
    _applied: AppliedSteps = field(default_factory=AppliedSteps)

    def add(self, line: MetricLine) -> None:
        if not line.is_outside:
            if line.step <= self.step:
                self._rewind(line.step)
            self.step = line.step
            self._applied.add_line(line)
            self.samples.add(line.step, self._applied.total)
            if (pace := self._pace.add(line)) is not None:
                seconds, samples = pace
                self.speed.add(line.step, line.time, samples / seconds, weight=seconds)
        for name, value in line.values.items():
            if (series := self._named(name)) is not None:
                series.add(line.step, line.time, value)

    def _named(self, name: str) -> Series | None:
        if name not in self.values:
            if len(self.values) >= MOST_NAMES:
                if len(self.left_out) < MOST_NAMES:
                    self.left_out.add(name)
                return None
            self.values[name] = Series()
        return self.values[name]

    def _rewind(self, step: int) -> None:
        for series in (self.speed, *self.values.values()):
            series.rewind(step)


def read_curves(run_dir: Path, *, also: Callable[[MetricLine], None] | None = None) -> Curves:
    """All of a job's metrics. A file that is missing gives no curves; what is wrong with it is said in `problem`.

    `also` gets every line, so that a long file is read once.
    """
    curves = Curves()
    lines = LineFile(run_dir / METRICS, msgspec.json.Decoder(MetricLine))
    for line in lines:
        curves.add(line)
        if also is not None:
            also(line)
    curves.skipped, curves.problem = lines.skipped, lines.problem
    return curves
