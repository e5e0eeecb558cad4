"""What a worker tells about itself: a row per applied step, samples and time shares, a few times a second at most.

Values logged in a void step are dropped. A tensor is read when it is logged: on a CPU that costs less than keeping it,
and one that the script changes later is recorded as it was. What counts goes to the coordinator and to the script's own
writers (`sinks`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import msgspec
import torch

from shoal.errors import UsageError
from shoal.events import Advised, StepsApplied
from shoal.strategies.peers import Peers, Traffic
from shoal.training.sinks import Sinks
from shoal.values import StepRow, TimeShares

INTERVAL = 0.25  # seconds between two reports
# What one report holds at most, so that it fits into a message of 4 MB whatever is logged.
MOST_ROWS = 2000
MOST_VALUES = 5000  # values in rows that wait; the row that reaches it still goes along
MOST_NAMES = 4000
LONGEST_NAME = 200  # bytes
EVALUATION = "evaluation/"  # before names of scores, for writers: a script may well log a `loss` and evaluate one


class Reporter:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.sinks = Sinks(lambda text: peers.report(Advised(worker=peers.worker, text=text)))
        self._names: set[str] = set()  # all that were ever logged
        self._values: dict[str, float] = {}  # last value of each name from applied steps
        self._value_samples = 0  # of the step that the last values are from
        self._open: dict[str, float] = {}  # logged in the iteration that is not over yet
        self._open_scores: list[tuple[int, dict[str, float]]] = []  # evaluated in it, with the step
        self._applied: dict[str, float] | None = None  # values of an applied step that has no row yet
        self._rows: list[StepRow] = []  # that wait; with nan and infinity as they are
        self._waiting_values = 0  # in those rows
        self._epoch = 0
        self._step_samples = 0  # of the last iteration that ended
        self._step_total = 0  # of the last applied step, over all workers
        self._step_seconds = 0.0  # since the last row: accumulated batches and void tries are part of a step
        self._iterations = 0  # since the last report
        self._samples = 0  # since the last report
        self._shares = TimeShares()  # since the last report
        self._traffic = Traffic()  # until the last report
        self._due = time.perf_counter() + INTERVAL

    # What the script says

    def log(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            if name not in self._names:
                self._check_name(name)
            self._open[name] = _number(name, value)

    def log_outside(self, values: Mapping[str, object], *, step: int) -> None:
        """Logged outside loops: a row of its own, sent at once, since nothing may follow for a while."""
        self.log(values)
        self._values.update(self._open)
        self._value_samples = 1
        values, self._open = self._open, {}
        self._append(step, values)
        self._report(step)

    def scored(self, scores: Mapping[str, float], *, step: int, is_open: bool) -> None:
        """Scores of an evaluation, for the writers. `is_open`: in an iteration, which they stand and fall with."""
        named = {EVALUATION + name: score for name, score in scores.items()}
        self._open_scores.append((step, named))
        if not is_open:
            self._keep_scores()
            self.sinks.hand_over()

    def keep_logged(self, *, samples: int, total: int = 0) -> None:
        """The step was applied: what was logged in it counts. Of a stand-in it does not. `total`: over all workers."""
        self._step_total = total
        self._applied = self._open if samples else {}
        if samples:
            self._values.update(self._open)
            self._value_samples = samples
        self._open = {}
        self._keep_scores()

    def drop_logged(self) -> None:
        self._open = {}
        self._open_scores.clear()

    def _keep_scores(self) -> None:
        for step, scores in self._open_scores:
            self.sinks.put(step, scores)
        self._open_scores.clear()

    def _check_name(self, name: str) -> None:
        if len(name.encode("utf-8", "replace")) > LONGEST_NAME:
            raise UsageError(f"run.log({name[:40]}...=...) has a name of over {LONGEST_NAME} bytes; shorten it")
        if len(self._names) >= MOST_NAMES:
            raise UsageError(f"run.log({name}=...) is one more than {MOST_NAMES} names; log under fewer of them")
        self._names.add(name)

    # What the loop says

    def add(self, *, samples: int, shares: TimeShares, epoch: int | None = None) -> None:
        """An iteration is over. `samples` are the step's, with its last batch."""
        self._epoch = self._epoch if epoch is None else epoch
        self._samples += samples
        self._shares = self._shares.plus(shares)
        self._iterations += 1
        self._step_samples = samples
        self._step_seconds += shares.total

    def send(self, *, step: int, now: bool = False) -> None:
        """Report if it is time to, or if asked to now. `step` are the applied steps, with the last that was added."""
        if self._applied is not None:
            row = {"samples": self._step_samples, "total": self._step_total}
            self._append(step, self._applied, seconds=self._step_seconds, **row)
            self._applied, self._step_seconds = None, 0.0
        is_full = len(self._rows) >= MOST_ROWS or self._waiting_values >= MOST_VALUES
        if self._iterations and (now or is_full or time.perf_counter() >= self._due):
            self._report(step)

    def restart_clock(self) -> None:
        """A loop begins: time before it is nobody's."""
        self._shares, self._step_seconds = TimeShares(), 0.0
        self._due = time.perf_counter() + INTERVAL

    def _append(
        self, step: int, values: dict[str, float], *, seconds: float = 0.0, samples: int = 0, total: int = 0
    ) -> None:
        self._rows.append(StepRow(step, self._epoch, seconds, samples, {**values}, total))
        self._waiting_values += len(values)
        self.sinks.put(step, values)

    def _report(self, step: int) -> None:
        began = time.perf_counter()
        traffic = self._peers.traffic()
        self._peers.report(
            StepsApplied(
                worker=self._peers.worker,
                generation=self._peers.generation.number,
                step=step,
                epoch=self._epoch,
                samples=self._samples,
                seconds=self._shares.total,
                shares=self._shares,
                bytes_sent=traffic.bytes_sent - self._traffic.bytes_sent,
                bytes_shared=traffic.bytes_shared - self._traffic.bytes_shared,
                value_samples=self._value_samples,
                values={name: finite(value) for name, value in self._values.items()},
                rows=tuple(map(_for_json, self._rows)),
            )
        )
        self._traffic = traffic
        self._rows, self._waiting_values = [], 0
        self._iterations = self._samples = 0
        self.sinks.hand_over()
        ended = time.perf_counter()
        # Steps wait for this too, above all for a slow writer: it is part of the next report's time.
        self._shares = TimeShares(other=ended - began)
        self._step_seconds += ended - began
        self._due = ended + INTERVAL


def _number(name: str, value: object) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise UsageError(f"run.log({name}=...) was given a tensor of shape {list(value.shape)}, not one number")
        value = value.item()
    if not isinstance(value, int | float):
        raise UsageError(f"run.log({name}=...) was given a {type(value).__name__}; it takes numbers")
    return float(value)


def _for_json(row: StepRow) -> StepRow:
    for value in row.values.values():
        if value is None or not math.isfinite(value):
            values = {name: None if value is None else finite(value) for name, value in row.values.items()}
            return msgspec.structs.replace(row, values=values)
    return row


def finite(value: float) -> float | None:
    """Events are JSON, which has no nan and no infinity."""
    return value if math.isfinite(value) else None
