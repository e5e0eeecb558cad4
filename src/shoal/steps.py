"""Applied steps in the record: a worker's row, the job's line, and which lines count. No I/O.

A job goes back when all workers with its newest state are lost: a line for a step at or below the last one takes back
that step and all after it. Not here: how rows become lines (`membership.record.metrics`), and reading them (`watch`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Ordinal, Total, Values

MOST_RUNS = 100_000  # of steps with equal samples; for older runs only the sum is kept
# A line with larger numbers is damaged.
MOST_COUNT = 2**63  # of anything
MOST_SECONDS = 1e15
LAST_TIME = 253_370_764_800.0  # seconds since 1970: the year 9999, the last that has dates
Time = Annotated[float, Meta(ge=0.0, le=LAST_TIME)]
Seconds = Annotated[float, Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """One applied step of one worker; the job's record has one line per step, made of all workers' rows."""

    step: Count  # number of applied steps, including this one; for values logged outside loops: so far
    epoch: Count
    seconds: float  # that this step took on this worker; 0 for values logged outside loops
    samples: Total  # of this worker
    values: Values  # logged in this step; None: nan or infinite
    total: Count  # samples of the whole step over all workers; 0 for values logged outside loops
    generation: Ordinal  # in which the step was applied
    ended: float  # when, in seconds by this worker's own clock (`membership.record.worker_clocks`)
    # If workers run free: `used` samples in all steps after step `base`, including this one. So the samples of a worker
    # that was killed before it reported its last step are known too. 0: not known.
    base: Count = 0
    used: Total = 0

    @property
    def is_outside(self) -> bool:
        """Logged outside loops."""
        return self.samples == 0 and self.seconds == 0


class SoFar(msgspec.Struct, frozen=True):
    """Samples that all steps after `base` have used."""

    base: Count
    used: Total


class MetricLine(msgspec.Struct, frozen=True):
    """A line of `metrics.jsonl`."""

    step: Count  # number of applied steps, including this one; for values logged outside loops: so far
    time: Time  # when the step was applied: seconds since 1970 by the coordinator's clock
    epoch: Count = 0
    generation: Ordinal = 0  # in which the step was applied
    seconds: Seconds = 0.0  # that the step took, on the worker where it took longest; 0: logged outside loops
    samples: Total = 0  # of all workers; 0: logged outside loops
    values: Values = {}  # means over workers, weighted by samples; None: nan or infinite
    so_far: SoFar | msgspec.UnsetType = msgspec.UNSET  # set if workers run free

    @property
    def is_outside(self) -> bool:
        """Logged outside loops."""
        return self.samples <= 0 and self.seconds <= 0


@dataclass
class AppliedSteps:
    """Samples by step, for the steps that count. A run of steps with equal samples is one entry."""

    is_cut: bool = False  # steps before the first known one exist, and count as like it
    last: int = 0  # the last step that counts
    total: int = 0  # samples of all steps that count
    _runs: list[tuple[int, int]] = field(default_factory=list)  # first step, and samples of each step from there on

    def add_line(self, line: MetricLine) -> tuple[int, int]:
        return self.add(line.step, line.samples, None if line.so_far is msgspec.UNSET else line.so_far)

    def add(self, step: int, samples: int, so_far: SoFar | None = None) -> tuple[int, int]:
        """Returns how many steps this one takes back, and their samples. `so_far` includes this step."""
        if step == self.last + 1 and self._runs and self._runs[-1][1] == samples:  # nearly always
            self.last, self.total = step, self.total + samples
            return 0, 0
        taken_back = self._rewind(step)
        if so_far is not None and self._runs and step > self.last + 1:
            self._fill(step - 1, so_far.used - samples, since=so_far.base)
        # A step without a line, which was lost with the workers that knew of it, counts as like the next one.
        first = self.last + 1 if self._runs else step
        if not self._runs or self._runs[-1][1] != samples:
            self._runs.append((first, samples))
        self.last = step
        self.total += samples * (step + 1 - first)
        if len(self._runs) > MOST_RUNS:
            del self._runs[: MOST_RUNS // 2]
            self.is_cut = True
        return taken_back

    def _fill(self, step: int, used: int, *, since: int) -> None:
        """Add steps without lines, up to `step`: all steps after `since` have used `used` samples together."""
        self.reach(min(since, step))
        missing, known = step - self.last, self._after(since)
        if missing <= 0 or known is None or used < known:
            return
        each, rest = divmod(used - known, missing)
        if missing > 1:
            self.add(step - 1, each)
        self.add(step, each + rest)

    def _after(self, step: int) -> int | None:
        """Samples of the steps after this one; None: not known."""
        end, total = self.last + 1, 0
        for first, samples in reversed(self._runs):
            begin = max(first, step + 1)
            total, end = total + samples * max(0, end - begin), first
            if first <= step + 1:
                return total
        return None

    def reach(self, step: int) -> None:
        """Steps up to this one were applied, but the last were not reported: they count as like the one before."""
        if self._runs and step > self.last:
            self.add(step, self._runs[-1][1])

    def _rewind(self, step: int) -> tuple[int, int]:
        """Forget this step and all after it."""
        end, steps, before = self.last + 1, 0, self.total
        while self._runs and end > step:
            first, samples = self._runs[-1]
            is_first_known = len(self._runs) == 1 and self.is_cut
            begin = step if is_first_known else max(first, step)
            self.total -= samples * (end - begin)
            steps, end = steps + end - begin, begin
            if first >= step:
                self._runs.pop()
        self.last = min(self.last, step - 1)
        return steps, before - self.total
