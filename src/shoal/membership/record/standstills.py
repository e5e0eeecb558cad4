"""When training stood still, and what was done again: `ProgressResumed`, from applied steps and their times. Pure.

Training stood still between two applied steps if the later one was applied in another generation, or if no worker was
heard from in between. The standstill lasts from the first of the two steps to the second, however many regroupings
there were, so standstills never overlap. Time without training does not count: before the first step of a loop a
standstill begins with the loop; outside loops it lasts from the first sign (a lost member, a new generation) until the
script gets on. A silence may be noticed only after its end: then a long gap without a step just before belongs to it.
Not here: how standstills are shown (`watch.incidents`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from shoal import events
from shoal.steps import AppliedSteps, MetricLine

SIGNS = (
    events.WorkerDied,
    events.WorkerExpelled,
    events.WorkerFailed,
    events.StepVoided,
    events.Waiting,
    events.GenerationFormed,
)
SILENCES = (events.WorkerExpelled, events.Waiting)  # signs that may come after the end of the silence they report
MARKS = (*SIGNS, events.LoopStarted, events.LoopEnded, events.Evaluated, events.WorkerLeft)  # events whose times matter
LATE = 10.0  # seconds after its end within which a silence may be noticed
LONG, TIMES = 1.0, 10  # a gap between steps of so many seconds, and so many times the usual gap, may be a silence
SLACK = 0.25  # seconds by which two measurements of the same time may differ
MOST_MARKS = 10_000  # since the last step
MOST_VOID = 10_000  # tries that are remembered one by one
REGROUPED = "the members regrouped"
Mark = tuple[float, events.Event]
Void = tuple[int, int, int | None]  # generation, step, and the worker where each has steps of its own


@dataclass
class _Standstill:
    """Exists from its first sign on."""

    began: float
    is_outside: bool  # outside loops: nobody was training
    seconds: float = 0.0  # of an earlier silence, which the sign came too late for
    reason: str = ""  # empty: the sign had no consequence for training
    generation: int = 0  # the newest that formed during the standstill
    until: float = math.inf

    def take(self, event: events.Event) -> None:
        if isinstance(event, events.GenerationFormed | events.Waiting):
            self.reason = self.reason or event.reason or REGROUPED
        if isinstance(event, events.GenerationFormed):
            self.generation = event.generation

    def is_passed(self, event: events.Event) -> bool:
        """Whether the script is past the place where training stood still, though no step was applied."""
        if isinstance(event, events.WorkerLeft):
            return not event.is_handover
        return isinstance(event, events.LoopStarted | events.Evaluated if self.is_outside else events.LoopEnded)


class Standstills:
    """For one run of a job: `observe` its events and `apply` its lines, in the order of the record."""

    def __init__(self) -> None:
        self._last: MetricLine | None = None  # the last applied step
        self._applied = AppliedSteps(is_cut=True)  # earlier lines may be missing: a resumed job, a new coordinator
        self._replaced = 0  # steps that servers had applied to values which the next generation replaces
        self._has_members = False  # there was a generation
        self._in_loop: bool | None = None  # after the last applied step; None: not known
        self._base = -math.inf  # when the last loop began or the last standstill ended: nothing counts before
        self._generation = 0  # of the last reported standstill
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)  # since the last applied step, in the order of their times
        self._void: dict[Void, int] = {}  # samples of void tries, which a later generation redoes
        self._paces: deque[float] = deque(maxlen=32)  # seconds between the last steps
        self._long = (-math.inf, 0.0)  # an unexplained long gap without a step: when it ended, and its seconds

    def observe(self, event: events.Event, time: float) -> list[events.ProgressResumed]:
        """Standstills that end without a step: outside loops when the script gets on, else at the end of the job."""
        is_first = isinstance(event, events.GenerationFormed) and not self._has_members
        if isinstance(event, MARKS) and not is_first and (self._has_members or not isinstance(event, SIGNS)):
            self._marks.append((time, event))
        if isinstance(event, events.StepVoided) and len(self._void) < MOST_VOID:
            self._void[event.generation, event.step, event.worker if event.is_own else None] = event.samples
        if isinstance(event, events.LoopStarted):
            self._replaced = max(self._replaced, event.replaced)
        self._has_members |= isinstance(event, events.GenerationFormed | events.CoordinatorReturned)
        if isinstance(event, events.JobEnded):
            return [self._resumed(each) for each in self._between(self._last, math.inf) if each.until < math.inf]
        if isinstance(event, events.LoopStarted | events.Evaluated | events.WorkerLeft) and self._marks:
            return self._passed_outside(time)
        return []

    def apply(self, line: MetricLine) -> list[events.ProgressResumed]:
        """A step was applied. Returns the standstills that have ended by then."""
        if line.is_outside:
            return []
        last, self._last = self._last, line
        if self._replaced and last is not None and line.generation > last.generation:
            self._applied.reach(self._replaced)  # all lines of earlier generations have come
            self._replaced = 0
        taken_back = self._applied.add_line(line)
        if self._void:  # the step was void on one worker, but applied on another: it is not redone
            self._void.pop((line.generation, line.step - 1, None), None)
        found = self._between(last, line.time) if self._marks else []
        self._look_for_silence(last, line, is_explained=bool(found))
        is_new = last is not None and line.generation > max(last.generation, self._generation)
        if not found and (taken_back[0] or is_new) and last is not None:  # its events were lost with a coordinator
            began = max(last.time, self._base)  # earlier time is reported already
            found = [_Standstill(began, is_outside=False, reason=REGROUPED, until=line.time)]
        for each in found:
            each.until = min(each.until, line.time)
        return [self._resumed(each, taken_back if each is found[-1] else (0, 0)) for each in found]

    def _passed_outside(self, time: float) -> list[events.ProgressResumed]:
        """Standstills outside loops that are over. One inside a loop may end with a step that is not reported yet."""
        before = self._marks.copy(), self._in_loop, self._base
        found = self._between(self._last, time)
        if found and all(each.is_outside and each.until < math.inf for each in found):
            return [self._resumed(each) for each in found]
        self._marks, self._in_loop, self._base = before
        return []

    def _between(self, last: MetricLine | None, until: float) -> list[_Standstill]:
        """Standstills since the last step. Marks later than `until` stay in the queue."""
        base = self._base if last is None else max(self._base, last.time)
        in_loop = last is not None if self._in_loop is None else self._in_loop
        found: list[_Standstill] = []
        standing: _Standstill | None = None
        while self._marks and self._marks[0][0] <= until:
            time, event = self._marks.popleft()
            if standing is not None and standing.reason and standing.is_passed(event):
                standing.until = base = time
                found, standing = [*found, standing], None
            if isinstance(event, SIGNS) and standing is None:
                standing = _Standstill(base if in_loop else time, is_outside=not in_loop)
            if standing is not None:
                standing.take(event)
            if standing is not None and isinstance(event, SILENCES) and time - self._long[0] <= LATE:
                standing.seconds, self._long = standing.seconds + self._long[1], (-math.inf, 0.0)
            if isinstance(event, events.LoopStarted):
                is_again = standing is not None and bool(standing.reason)  # all workers begin the loop again
                in_loop, base = True, base if is_again else time
            elif isinstance(event, events.LoopEnded):
                in_loop = False
        self._in_loop, self._base = in_loop, base
        return [*found, standing] if standing is not None and standing.reason else found

    def _look_for_silence(self, last: MetricLine | None, line: MetricLine, *, is_explained: bool) -> None:
        """Remember a long gap without a step: a later sign may explain it."""
        if last is None:
            return
        seconds = line.time - last.time
        usual = statistics.median(self._paces) if self._paces and seconds >= LONG else math.inf
        # If the step took less time than the gap, the rest of the gap was no training.
        if seconds >= TIMES * usual and not is_explained and seconds <= line.seconds + SLACK:
            self._long = (line.time, seconds)
        self._paces.append(seconds)

    def _resumed(self, standing: _Standstill, taken_back: tuple[int, int] = (0, 0)) -> events.ProgressResumed:
        steps, samples = taken_back
        last = self._last
        generation = max(standing.generation, 0 if last is None else last.generation)
        self._generation = generation
        void = [key for key in self._void if key[0] < generation]
        return events.ProgressResumed(
            generation=generation,
            step=0 if last is None else last.step,
            time=standing.until,
            seconds=max(0.0, standing.until - standing.began) + standing.seconds,
            redone=steps + len(void),
            samples_redone=samples + sum(self._void.pop(key) for key in void),
            taken_back=steps,
            samples_taken_back=samples,
            reason=standing.reason,
        )
