"""Which charts a report has and the numbers in them, as the JSON that the page's script draws from. Pure.

Not here: how they are drawn (`chart.js`) and the figures around them (`sections`).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.watch.record.goodput import Cost
from shoal.watch.record.run_record import RunRecord
from shoal.watch.record.series import Curves, Point, Series
from shoal.watch.record.tracks import Track
from shoal.watch.report.markup import Markup, readable, trusted
from shoal.watch.wording import first_line, span

# Dashes distinguish curves for those who cannot see the colours.
DASHES = ("", "7 3", "2 3", "9 3 2 3", "13 4", "4 2 1 2")
COLOURS = 8  # in the style sheet
BUDGET = 60_000  # points in a page; many curves are thinned further
MOST_MARKS = 40  # lines across a chart; more would hide the curve
MOST_WORKERS = 8  # with a line of their own; more could not be told apart
MOST_USE = 300  # points of a line of processor or memory


@dataclass(frozen=True)
class Reported:
    """One run of a report."""

    label: str  # unique in the report
    record: RunRecord
    curves: Curves
    cost: Cost  # of what went wrong


class ChartLine(msgspec.Struct, frozen=True, kw_only=True):
    """One curve; all lists have one entry per point."""

    run: int  # its place in the report
    held_out: bool
    step: list[int]
    time: list[float]  # seconds that the job had run
    mean: list[float | None]
    low: list[float | None] | None  # None: every point is one value
    high: list[float | None] | None
    worker: int | None = None  # whose line it is; None: the job's
    dash: str | None = None  # in place of the run's


class Mark(msgspec.Struct, frozen=True):
    """Something that happened, drawn across a chart."""

    step: int
    time: float
    text: str
    is_problem: bool = False
    until: float | None = None  # of a stretch without progress: when it ended


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    unit: str
    from_zero: bool  # the axis begins at 0, so that heights compare
    lines: list[ChartLine]
    remark: str = ""  # what the curves cannot show
    section: str = "curves"  # where it stands: curves, speed or use


class AxisTrack(msgspec.Struct, frozen=True):
    """Another measure of how far the job was, after some of its steps; in between the script interpolates."""

    step: list[int]
    value: list[float]


class RunStyle(msgspec.Struct, frozen=True):
    label: str
    dash: str
    marks: list[Mark]
    samples: AxisTrack | None = None  # used after each step; None: not known
    epoch: AxisTrack | None = None  # epochs done


class ChartData(msgspec.Struct, frozen=True):
    runs: list[RunStyle]
    charts: list[Chart]
    axes: list[str] = []  # what curves can be drawn over: step, samples, epoch, time; the first is shown at first


def chart_data(runs: Sequence[Reported]) -> ChartData:
    names = chart_names(runs)
    curves = sum(len(run.curves.values) + len(run.record.story.scores) + 1 for run in runs)
    most = max(100, min(1000, BUDGET // max(1, curves)))
    charts = [_chart(name, f"value-{number}", runs, most) for number, name in enumerate(names)]
    speed = Chart(
        id="speed",
        title="samples per second",
        unit="samples/s",
        from_zero=True,
        lines=[_line(number, run, run.curves.speed, most) for number, run in enumerate(runs)],
        section="speed",
    )
    styles = [
        RunStyle(
            label=run.label,
            dash=dash_of(number),
            marks=_marks(run) if len(runs) == 1 else [],
            samples=_way(run.curves.samples),
            epoch=_way(run.record.story.epochs.until(run.curves.step)),
        )
        for number, run in enumerate(runs)
    ]
    return ChartData(styles, [*charts, speed, *_use_charts(runs)], axes_of(styles))


def axes_of(styles: Sequence[RunStyle]) -> list[str]:
    """Several runs are compared over samples: their steps may be of different sizes."""
    known = ["step", "samples", "epoch", "time"]
    for name in ("samples", "epoch"):
        if any(getattr(style, name) is None for style in styles):
            known.remove(name)
    if len(styles) > 1 and "samples" in known:
        known.insert(0, known.pop(known.index("samples")))
    return known


def _way(track: Track | None) -> AxisTrack | None:
    if track is None or not track.is_known:
        return None
    anchors = track.anchors()
    return AxisTrack([step for step, _ in anchors], [round(value, 4) for _, value in anchors])


def _use_charts(runs: Sequence[Reported]) -> list[Chart]:
    """Processor and memory: a line per worker in the report of one run, else a line per run."""
    found = []
    for chart_id, title, unit in (
        ("processor", "processor cores in use", "cores"),
        ("memory", "memory in use, GB", "GB"),
    ):
        lines = _worker_lines(runs[0], chart_id) if len(runs) == 1 else []
        of = "" if lines else ", all workers"
        lines = lines or [_line(place, run, _all_workers(run, chart_id), MOST_USE) for place, run in enumerate(runs)]
        if any(line.step for line in lines):
            found.append(Chart(id=chart_id, title=title + of, unit=unit, from_zero=True, lines=lines, section="use"))
    return found


def _worker_lines(run: Reported, kind: str) -> list[ChartLine]:
    """None where there are too many workers to tell their lines apart."""
    use = run.record.story.use
    curves = use.cores if kind == "processor" else use.memory
    if len(curves) > MOST_WORKERS:
        return []
    return [
        msgspec.structs.replace(_line(0, run, series, MOST_USE), worker=worker, dash=dash_of(place))
        for place, (worker, series) in enumerate(sorted(curves.items()))
    ]


def _all_workers(run: Reported, kind: str) -> Series:
    use = run.record.story.use
    return use.all_cores if kind == "processor" else use.all_memory


def dash_of(run: int) -> str:
    return DASHES[run % len(DASHES)]


def chart_names(runs: Sequence[Reported]) -> list[str]:
    """The loss, then what was evaluated, then the rest."""
    scores = {name for run in runs for name in run.record.story.scores}
    logged = {name for run in runs for name in run.curves.values}
    return sorted(scores | logged, key=lambda name: (name != "loss", name not in scores, name))


def _chart(name: str, chart_id: str, runs: Sequence[Reported], most: int) -> Chart:
    lines = []
    lost = 0
    for number, run in enumerate(runs):
        for found, held_out in ((run.curves.values, False), (run.record.story.scores, True)):
            if name in found:
                lines.append(_line(number, run, found[name], most, held_out=held_out))
                lost += found[name].not_finite
    values = "1 value was" if lost == 1 else f"{lost:,} values were"
    remark = f"{values} not finite (nan or infinite) and cannot be drawn" if lost else ""
    return Chart(id=chart_id, title=readable(name), unit="", from_zero=False, lines=lines, remark=remark)


def _line(number: int, run: Reported, series: Series, most: int, *, held_out: bool = False) -> ChartLine:
    points = thinned(series.points(), most)
    single = all(point.low == point.high for point in points)
    return ChartLine(
        run=number,
        held_out=held_out,
        step=[point.step for point in points],
        time=[round(run.record.story.elapsed(point.time), 3) for point in points],
        mean=[_short(point.mean) for point in points],
        low=None if single else [_short(point.low) for point in points],
        high=None if single else [_short(point.high) for point in points],
    )


def thinned(points: list[Point], most: int) -> list[Point]:
    """At most so many points: neighbours are joined, and a remainder joins the last point."""
    every = -(-len(points) // most)
    if every <= 1:
        return points
    starts = [at for at in range(0, len(points), every) if at == 0 or 2 * (len(points) - at) >= every]
    return [_join(points[at:end]) for at, end in zip(starts, [*starts[1:], len(points)], strict=True)]


def _join(points: list[Point]) -> Point:
    means = [point.mean for point in points if point.mean is not None]
    lows = [point.low for point in points if point.low is not None]
    highs = [point.high for point in points if point.high is not None]
    last = points[-1]
    if not means:
        return last
    return Point(last.step, last.time, sum(means) / len(means), min(lows), max(highs))


def _short(value: float | None) -> float | None:
    """A value with six digits, more than a screen shows."""
    return None if value is None else float(f"{value:.6g}")


def _marks(run: Reported) -> list[Mark]:
    """Faults, changes of membership and resumes, which explain steps in a curve; and stretches without progress."""
    story = run.record.story
    points = run.curves.speed.points()
    times = [point.time for point in points]

    def step_at(time: float) -> int:
        place = bisect.bisect_right(times, time)
        return points[place - 1].step if place else 0

    told = [entry for entry in story.timeline.entries if entry.is_change or (entry.lane and entry.is_problem)]
    marks = []
    for entry in told[-MOST_MARKS:]:
        step = step_at(entry.time) if entry.step is None else entry.step
        reason = f": {first_line(entry.reason)}" if entry.reason else ""
        text = readable(entry.title + reason)
        marks.append(Mark(step, round(story.elapsed(entry.time), 3), text, is_problem=entry.is_problem))
    for incident in list(story.incidents)[-MOST_MARKS:]:
        for since, until in incident.spans:
            began, ended = (round(story.elapsed(time), 3) for time in (since, until))
            step = incident.step if incident.step is not None else step_at(since)
            marks.append(Mark(step, began, f"no step for {span(until - since)}", is_problem=True, until=ended))
    return marks


def as_script_text(data: ChartData) -> Markup:
    """JSON in which no text can close the script element."""
    text = msgspec.json.encode(data).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return trusted(text)
