"""Rows of all workers merged into one line per applied step, for `metrics.jsonl`. Pure: the caller says the time.

A value is the mean over the workers that logged it, weighted by their samples. A step's line is complete when every
member of the present generation has reported that step or a later one. Values logged outside loops have lines of their
own, with no samples and no seconds, after the line of the step they follow. Not here: the file (`journal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from shoal.events import StepsApplied
from shoal.values import StepRow

MOST_WAITING = 50_000  # lines that wait for a worker that has fallen silent; beyond, the oldest go as they are


class MetricLine(msgspec.Struct, frozen=True):
    """A line of `metrics.jsonl`."""

    step: int  # applied steps, with this one; of values logged outside loops: so far
    time: float  # seconds since 1970, by the coordinator's clock, when the step ended
    epoch: int
    seconds: float  # that the step took, on the worker where it took longest; 0: logged outside loops
    samples: int  # of all workers; 0: logged outside loops
    values: dict[str, float | None]  # means over workers, weighted by samples; None: nan or infinite


class _Waiting:
    """The rows of one step so far, one per worker."""

    __slots__ = ("rows", "time")

    def __init__(self, time: float) -> None:
        self.time = time  # earliest end of the step that a worker's report allows for
        self.rows: dict[int, StepRow] = {}

    def put(self, worker: int, row: StepRow, time: float) -> None:
        """A step that a worker reports again replaces what it said; outside loops its values add up."""
        self.time = min(self.time, time)
        known = self.rows.get(worker)
        if known is not None and _is_outside(row):
            row = msgspec.structs.replace(row, values={**known.values, **row.values})
        self.rows[worker] = row


class Metrics:
    """Rows in, complete lines out, each step at most once and in order."""

    def __init__(self, *, last_step: int = -1) -> None:
        """`last_step` has a line already, of an earlier coordinator of the same run."""
        self._reported: dict[int, int | None] = {}  # by member: the last step it spoke of; None: of none yet
        self._waiting: dict[int, _Waiting] = {}  # by key
        self._written = 2 * last_step  # the last line's key
        self._time = 0.0  # the last line's; times never go back

    def regroup(self, workers: Iterable[int]) -> list[MetricLine]:
        """The next generation has these members; lines wait for nobody else."""
        self._reported = {worker: self._reported.get(worker) for worker in workers}
        return self._complete()

    def returned(self, worker: int) -> None:
        """A member that an earlier coordinator knew is back: lines wait for it again."""
        self._reported.setdefault(worker, None)

    def add(self, event: StepsApplied, now: float) -> list[MetricLine]:
        """A worker's report that came at `now`."""
        ended = now - sum(row.seconds for row in event.rows)
        for row in event.rows:
            ended += row.seconds
            key = _key(row)
            if key > self._written and (row.values or not _is_outside(row)):
                waiting = self._waiting.get(key)
                if waiting is None:
                    waiting = self._waiting[key] = _Waiting(ended)
                waiting.put(event.worker, row, ended)
        if event.worker in self._reported:
            self._reported[event.worker] = event.step
        return self._complete()

    def finish(self) -> list[MetricLine]:
        """Everything that is left: nothing more will come."""
        return self._lines(sorted(self._waiting))

    def _complete(self) -> list[MetricLine]:
        steps = [-1 if step is None else step for step in self._reported.values()]
        reached = 2 * min(steps, default=-1)
        keys = sorted(key for key in self._waiting if key <= reached)
        if len(self._waiting) - len(keys) > MOST_WAITING:
            keys = sorted(self._waiting)[:-MOST_WAITING]
        return self._lines(keys)

    def _lines(self, keys: Sequence[int]) -> list[MetricLine]:
        lines = []
        for key in keys:
            waiting = self._waiting.pop(key)
            self._written = key
            self._time = max(self._time, waiting.time)
            lines.append(_line(list(waiting.rows.values()), self._time))
        return lines


def _is_outside(row: StepRow) -> bool:
    return row.samples == 0 and row.seconds == 0


def _key(row: StepRow) -> int:
    """Orders lines: what was logged outside loops comes after its step and before the next."""
    return 2 * row.step + _is_outside(row)


def _line(rows: list[StepRow], time: float) -> MetricLine:
    values = rows[0].values if len(rows) == 1 else _means(rows)
    return MetricLine(
        step=rows[0].step,
        time=round(time, 3),
        epoch=max(row.epoch for row in rows),
        seconds=round(max(row.seconds for row in rows), 6),
        # A worker that was killed may not have sent its row any more.
        samples=max(sum(row.samples for row in rows), *(row.total for row in rows)),
        values=values,
    )


def _means(rows: list[StepRow]) -> dict[str, float | None]:
    """A value that is not finite on one worker is not finite as a mean."""
    found: dict[str, list[tuple[int, float | None]]] = {}
    for row in rows:
        weight = max(row.samples, 1)  # outside loops every worker counts once
        for name, value in row.values.items():
            found.setdefault(name, []).append((weight, value))
    return {name: _mean(weighted) for name, weighted in found.items()}


def _mean(weighted: list[tuple[int, float | None]]) -> float | None:
    first = weighted[0][1]
    total, weights, differ = 0.0, 0, False
    for weight, value in weighted:
        if value is None:
            return None
        total += weight * value
        weights += weight
        differ = differ or value != first
    mean = total / weights if differ else first  # what all agree on is not rounded
    return mean if mean is not None and math.isfinite(mean) else None
