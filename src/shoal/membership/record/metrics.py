"""Rows of all workers merged into one line per applied step, for `metrics.jsonl`. Pure: the caller passes the time.

Lines are ordered by generation, and within a generation by step. A step that is redone in a later generation, because
its result was lost, has a second line. A value is the mean over the workers that logged it, weighted by their samples.
A line is complete when every member of the present generation has reported that step or a later one. Values logged
outside loops have lines of their own, with no samples and no seconds, after the line of the step they follow. Not here:
the file (`event_writer`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from shoal.events import StepsApplied
from shoal.membership.record.worker_clocks import WorkerClocks
from shoal.steps import MetricLine, SoFar, StepRow

MOST_WAITING = 50_000  # lines that wait for a silent worker; beyond, the oldest are written as they are
Key = tuple[int, int]  # generation, and twice the step, plus one for values logged outside loops
NOTHING: Key = (-1, -1)


class _Waiting:
    """The rows of one step so far, one per worker."""

    __slots__ = ("rows", "time")

    def __init__(self) -> None:
        self.time = math.inf  # when the first worker ended the step
        self.rows: dict[int, StepRow] = {}

    def put(self, worker: int, row: StepRow, time: float) -> None:
        """A repeated report of a step replaces the earlier one; outside loops, values of both are kept."""
        self.time = min(self.time, time)
        known = self.rows.get(worker)
        if known is not None and row.is_outside:
            row = msgspec.structs.replace(row, values={**known.values, **row.values})
        self.rows[worker] = row


class Metrics:
    """Rows in, complete lines out, each applied step once and in order."""

    def __init__(self, last: MetricLine | None = None) -> None:
        """`last`: the last line that an earlier coordinator of the same run wrote."""
        self._clocks = WorkerClocks()
        self._reported: dict[int, Key] = {}  # by member: how far it has reported
        self._waiting: dict[Key, _Waiting] = {}
        self._written: Key = NOTHING if last is None else (last.generation, 2 * last.step + last.is_outside)
        self._step = 0 if last is None else last.step  # of the last line; values logged before it are old
        self._time = 0.0 if last is None else last.time  # of the last line; times never go back

    def regroup(self, workers: Iterable[int]) -> list[MetricLine]:
        """The next generation has these members; lines wait for nobody else."""
        self._reported = {worker: self._reported.get(worker, NOTHING) for worker in workers}
        return self._complete()

    def add(self, event: StepsApplied, now: float) -> list[MetricLine]:
        """A worker's report that came at `now`."""
        if isinstance(event.clock, float):
            ahead = self._clocks.hear(event.worker, event.clock, now)
            for row in event.rows:
                self._put(event.worker, row, row.ended + ahead)
        if event.worker in self._reported:
            self._reported[event.worker] = max(self._reported[event.worker], (event.generation, 2 * event.step))
        return self._complete()

    def finish(self) -> list[MetricLine]:
        """All remaining lines, complete or not: no more reports will come."""
        return self._lines(sorted(self._waiting))

    def _put(self, worker: int, row: StepRow, time: float) -> None:
        is_outside = row.is_outside
        key = (row.generation, 2 * row.step + is_outside)
        if key <= self._written or (is_outside and not row.values):
            return
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        waiting.put(worker, row, time)

    def _complete(self) -> list[MetricLine]:
        reached = min(self._reported.values(), default=NOTHING)
        keys = sorted(key for key in self._waiting if key <= reached)
        if len(self._waiting) - len(keys) > MOST_WAITING:
            keys = sorted(self._waiting)[:-MOST_WAITING]
        return self._lines(keys)

    def _lines(self, keys: Sequence[Key]) -> list[MetricLine]:
        lines = []
        for key in keys:
            waiting = self._waiting.pop(key)
            step, is_outside = divmod(key[1], 2)
            if is_outside and step < self._step:
                continue  # logged before; this script runs again from the top in the middle of the job
            self._written, self._step = key, step
            self._time = max(self._time, waiting.time)
            lines.append(_line(list(waiting.rows.values()), self._time))
        return lines


def _line(rows: list[StepRow], time: float) -> MetricLine:
    values = rows[0].values if len(rows) == 1 else _means(rows)
    return MetricLine(
        step=rows[0].step,
        time=round(time, 3),
        epoch=max(row.epoch for row in rows),
        generation=rows[0].generation,
        seconds=round(max(row.seconds for row in rows), 6),
        # A worker that was killed may not have sent its row.
        samples=max(sum(row.samples for row in rows), *(row.total for row in rows)),
        values=values,
        so_far=SoFar(rows[0].base, rows[0].used) if rows[0].used else msgspec.UNSET,
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
    mean = total / weights if differ else first  # a value that all workers agree on is not rounded
    return mean if mean is not None and math.isfinite(mean) else None
