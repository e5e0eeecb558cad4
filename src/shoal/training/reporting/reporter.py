"""What a worker tells about itself: a row per applied step, samples and time shares, a few times a second at most.

A report has the totals of this process, so that a lost report does not make the next one wrong. Values logged in a
void step are dropped. A tensor is read when it is logged: on a CPU that costs less than keeping it, and a tensor that
the script changes later is recorded as it was. What counts goes to the coordinator and to the script's own writers
(`sinks`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import msgspec
import torch

from shoal.errors import UsageError
from shoal.events import Advised, AnyEvent, StepsApplied
from shoal.membership.record.worker_clocks import own_clock
from shoal.steps import StepRow
from shoal.strategies.peers.peers import Peers
from shoal.strategies.strategy import Iteration
from shoal.training import texts
from shoal.training.mistakes.truncated_files import TruncatedFiles
from shoal.training.reporting.own_machine import UseMeter, own_machine
from shoal.training.reporting.sinks import Sinks
from shoal.values import TimeShares

INTERVAL = 0.25  # seconds between two reports
# What one report holds at most, so that it fits into a message of 4 MB whatever is logged.
MOST_ROWS = 2000
MOST_VALUES = 5000  # values in rows that wait; the row that reaches this limit is sent with them
MOST_NAMES = 4000
LONGEST_NAME = 200  # bytes
EVALUATION = "evaluation/"  # before names of scores, for writers: a script may both log and evaluate a `loss`


class _Applied(msgspec.Struct, frozen=True):
    """A step that counts and has no row yet."""

    step: int  # applied steps, with this one
    values: dict[str, float]
    samples: int  # this worker's own
    total: int  # over all workers
    generation: int
    ended: float  # by this worker's own clock
    base: int = 0  # see `StepRow`
    used: int = 0


class Reporter:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.generation = 0  # the last one in which this worker applied a step or took the others' state; 0: none
        self.sinks = Sinks(lambda text: peers.report(Advised(worker=peers.worker, text=text)))
        self.files = TruncatedFiles(peers)
        self._names: set[str] = set()  # all that were ever logged
        self._values: dict[str, float] = {}  # last value of each name from applied steps
        self._value_samples = 0  # of the step that the last values are from
        self._open: dict[str, float] = {}  # logged in the iteration that is not over yet
        self._open_scores: list[tuple[int, dict[str, float]]] = []  # evaluated in that iteration, with the step
        self._applied: _Applied | None = None
        self._rows: list[StepRow] = []  # that wait to be sent; with nan and infinity as they are
        self._held: list[StepRow] = []  # of applied steps whose stretch may still turn out void
        self._held_samples = 0  # this worker's own, in the steps that are not committed
        self._held_events: list[AnyEvent] = []  # to be reported once those steps are committed
        self._waiting_values = 0  # in `_rows`
        self._epoch = 0
        self._step_seconds = 0.0  # since the last row: accumulated batches and void tries are part of a step
        self._added = own_clock()  # the end of the time in `_step_seconds`
        self._has_news = False  # since the last report
        self._samples = 0  # of all applied steps
        self._shares = TimeShares()  # since the last report
        self._reported = TimeShares()  # until the last report
        self._meter = UseMeter()
        self._has_told_machine = False
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
        logged, self._open = self._open, {}
        self._append(_Applied(step, logged, 0, 0, self.generation, own_clock()), 0.0)
        self._release(step)
        self._report(step)

    def scored(self, scores: Mapping[str, float], *, step: int, is_open: bool) -> None:
        """Scores of an evaluation, for the writers. `is_open`: in an iteration; a void one drops them."""
        named = {EVALUATION + name: score for name, score in scores.items()}
        self._open_scores.append((step, named))
        if not is_open:
            self._keep_scores()
            self.sinks.hand_over()

    def keep_logged(self, iteration: Iteration, *, step: int) -> None:
        """A step was applied: keep what was logged in its last batch, unless that batch was a stand-in.

        The values are final with the next `commit`, or are dropped together with all since the last one.
        """
        values = self._open if iteration.samples else {}
        if iteration.samples:
            self._values.update(self._open)
            self._value_samples = iteration.samples
        self.generation = self._peers.generation.number
        self._samples += iteration.own_samples
        self._held_samples += iteration.own_samples
        samples, total = iteration.own_samples, iteration.step_samples
        self._applied = _Applied(step, values, samples, total, self.generation, own_clock())
        self._has_news = True
        self._open = {}
        self._keep_scores()

    def numbered(self, step: int, *, base: int, used: int) -> None:
        """Number the step that was just applied, where workers run free: `step` counts the updates of all workers.

        `used`: samples that all steps after step `base` have used.
        """
        if self._applied is not None:
            self._applied = msgspec.structs.replace(self._applied, step=step, base=base, used=used)

    def commit(self) -> None:
        """All applied steps count from now on."""
        self._held_samples = 0

    def drop_logged(self) -> None:
        """A step is void, and so are those before it that were not committed."""
        self._samples -= self._held_samples
        self._step_seconds += sum(row.seconds for row in self._held)
        self._held_samples = 0
        self._held.clear()
        self._held_events.clear()
        self._open = {}
        self._open_scores.clear()

    def _keep_scores(self) -> None:
        for step, scores in self._open_scores:
            self.sinks.put(step, scores)
        self._open_scores.clear()

    def _check_name(self, name: str) -> None:
        if len(name.encode("utf-8", "replace")) > LONGEST_NAME:
            raise UsageError(texts.log_name_too_long(name, LONGEST_NAME))
        if len(self._names) >= MOST_NAMES:
            raise UsageError(texts.too_many_log_names(name, MOST_NAMES))
        self._names.add(name)

    # What the loop says

    def add(self, *, shares: TimeShares, epoch: int) -> None:
        """An iteration is over."""
        self._epoch = epoch
        self._shares = self._shares.plus(shares)
        self._has_news = True
        self._step_seconds += shares.total
        self._added = own_clock()

    def tell_of_steps(self, event: AnyEvent, *, is_inside: bool) -> None:
        """Report an event about all steps so far. `is_inside`: some are of a stretch that may still turn out void."""
        if is_inside:
            self._held_events.append(event)
        else:
            self._peers.report(event)

    def tell_files(self) -> None:
        """Report files that the script's code has emptied since the last time."""
        if self.files.waiting:
            self._peers.report(*self.files.take())

    def take_state(self) -> None:
        """This worker has the state of the present generation's members."""
        self.generation = self._peers.generation.number

    def entered(self, generation: int, *, step: int) -> None:
        """This worker goes on in another generation: it has reported all that it applied in earlier ones."""
        self.generation = generation
        self._report(step)

    def tell(self, *, step: int) -> None:
        """Report what this worker has applied before the members regroup: they may go on without this worker."""
        applied = self._applied
        if applied is not None:
            taken = max(0.0, applied.ended - self._added)
            self._append(applied, self._step_seconds + taken)
            self._applied, self._step_seconds = None, -taken  # the rest of the iteration is the next step's
        self._release(step)
        if self._rows:
            self._report(step)

    def send(self, *, step: int, now: bool = False, is_inside: bool = False) -> None:
        """Report if a report is due, or if asked to `now`. `step`: applied steps, with the last that was added.

        `is_inside`: the last step is of a stretch that may still turn out void, and is reported when that is over.
        """
        self.tell_files()
        if self._applied is not None:
            self._append(self._applied, self._step_seconds)
            self._applied, self._step_seconds = None, 0.0
        if is_inside:
            return
        self._release(step)
        if self._has_news and (now or self._is_full or time.perf_counter() >= self._due):
            self._report(step)

    @property
    def _is_full(self) -> bool:
        return len(self._rows) >= MOST_ROWS or self._waiting_values >= MOST_VALUES

    def _release(self, step: int) -> None:
        """Held rows count now: send them with the next report, and hand them to the script's writers."""
        for row in self._held:
            if self._is_full:
                self._report(step)
            self._rows.append(row)
            self._waiting_values += len(row.values)
            self.sinks.put(row.step, row.values)  # type: ignore[arg-type]  # none of them is None before it is sent
        self._held.clear()
        if self._held_events:
            self._report(step)
            self._peers.report(*self._held_events)
            self._held_events.clear()

    def restart_clock(self) -> None:
        """A loop begins: do not count the time before it."""
        self._shares, self._step_seconds, self._added = TimeShares(), 0.0, own_clock()
        self._due = time.perf_counter() + INTERVAL

    def _append(self, applied: _Applied, seconds: float) -> None:
        step, values = applied.step, applied.values
        place = (applied.total, applied.generation, applied.ended, applied.base, applied.used)
        self._held.append(StepRow(step, self._epoch, seconds, applied.samples, {**values}, *place))

    def _report(self, step: int) -> None:
        began = time.perf_counter()
        if not self._has_told_machine:
            self._peers.report(own_machine(self._peers.worker))
            self._has_told_machine = True
        traffic = self._peers.traffic()
        self._reported = self._reported.plus(self._shares)
        self._peers.report(
            StepsApplied(
                worker=self._peers.worker,
                generation=self.generation,
                step=step,
                epoch=self._epoch,
                samples=self._samples,
                seconds=self._reported.total,
                shares=self._reported,
                bytes_sent=traffic.bytes_sent,
                bytes_shared=traffic.bytes_shared,
                value_samples=self._value_samples,
                values={name: finite(value) for name, value in self._values.items()},
                use=self._meter.measure(),
                rows=tuple(map(_for_json, self._rows)),
                clock=own_clock(),
            )
        )
        self._rows, self._waiting_values = [], 0
        self._has_news = False
        self.sinks.hand_over()
        ended = time.perf_counter()
        # Steps wait for this report too, above all for a slow writer: its time is part of the next report.
        self._shares = TimeShares(other=ended - began)
        self._step_seconds += ended - began
        self._due = ended + INTERVAL


def _number(name: str, value: object) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise UsageError(texts.logged_tensor(name, value.shape))
        value = value.item()
    if not isinstance(value, int | float):
        raise UsageError(texts.logged_no_number(name, value))
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
