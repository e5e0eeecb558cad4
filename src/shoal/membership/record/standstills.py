"""When training stood still, and what was done again: `ProgressResumed`, from applied steps and their times. Pure.

Between two applied steps training stood still if the later one was applied in another generation, or nobody was heard
of in between. It stood still from the one to the other, whoever knew of either and however many regroupings there were;
so standstills never overlap. What was no training is left out: before the first step of a loop it counts from the
loop's beginning, and outside loops from the first sign (a lost member, a new generation) until the script gets on. A
silence may be noticed only when it is over: then a long time without a step just before belongs to it. Not here: what
they are told as (`watch.incidents`).
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
SILENCES = (events.WorkerExpelled, events.Waiting)  # signs that may come when what they are about is over
MARKS = (*SIGNS, events.LoopStarted, events.LoopEnded, events.Evaluated, events.WorkerLeft)  # whose times count
LATE = 10.0  # seconds by which a silence may be noticed after its end
LONG, TIMES = 1.0, 10  # seconds between two steps, and times what is usual, that are a silence if a sign says so
SLACK = 0.25  # seconds by which two measures of one time may differ
MOST_MARKS = 10_000  # since the last step
MOST_VOID = 10_000  # tries that are remembered one by one
REGROUPED = "the members regrouped"
Mark = tuple[float, events.Event]
Void = tuple[int, int, int | None]  # generation, step, and whose it was where each has its own


@dataclass
class _Standstill:
    """From its first sign on."""

    began: float
    is_outside: bool  # nobody was training
    seconds: float = 0.0  # more, that were over before the sign came
    reason: str = ""  # empty: somebody was lost who did not matter
    generation: int = 0  # the newest that was formed in it
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
    """Of one go of a job: `note` its events and `apply` its lines, in the order of the record."""

    def __init__(self) -> None:
        self._last: MetricLine | None = None  # the last applied step
        self._applied = AppliedSteps(is_cut=True)  # a job may be resumed, or its coordinator a new one
        self._replaced = 0  # steps that servers had applied to values which the next generation's replace
        self._has_members = False  # there was a generation
        self._in_loop: bool | None = None  # after the last applied step; None: not known
        self._base = -math.inf  # time of the last loop's beginning, or of a standstill's end: nothing counts before
        self._generation = 0  # of the last standstill that was told
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)  # since the last applied step, in the order of their times
        self._void: dict[Void, int] = {}  # tries that a later generation makes up for, with their samples
        self._paces: deque[float] = deque(maxlen=32)  # seconds between the last steps
        self._long = (-math.inf, 0.0)  # when a long time without a step was over that nobody has explained; its seconds

    def note(self, event: events.Event, time: float) -> list[events.ProgressResumed]:
        """What is over without a step: outside loops when the script gets on, else at the end of the job."""
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
        """A step was applied. What is over by then."""
        if line.is_outside:
            return []
        last, self._last = self._last, line
        if self._replaced and last is not None and line.generation > last.generation:
            self._applied.reach(self._replaced)  # all lines of the generations before have come
            self._replaced = 0
        taken_back = self._applied.add_line(line)
        if self._void:  # on some worker, and whole on another, whose state all go on from: it is not done again
            self._void.pop((line.generation, line.step - 1, None), None)
        found = self._between(last, line.time) if self._marks else []
        self._look_for_silence(last, line, is_explained=bool(found))
        is_new = last is not None and line.generation > max(last.generation, self._generation)
        if not found and (taken_back[0] or is_new) and last is not None:  # what is known of it went with a coordinator
            began = max(last.time, self._base)  # what was before is told already
            found = [_Standstill(began, is_outside=False, reason=REGROUPED, until=line.time)]
        for each in found:
            each.until = min(each.until, line.time)
        return [self._resumed(each, taken_back if each is found[-1] else (0, 0)) for each in found]

    def _passed_outside(self, time: float) -> list[events.ProgressResumed]:
        """Of one inside a loop, a step that is not reported yet may have been the end."""
        before = self._marks.copy(), self._in_loop, self._base
        found = self._between(self._last, time)
        if found and all(each.is_outside and each.until < math.inf for each in found):
            return [self._resumed(each) for each in found]
        self._marks, self._in_loop, self._base = before
        return []

    def _between(self, last: MetricLine | None, until: float) -> list[_Standstill]:
        """Standstills since the last step. Marks that are later than the next one stay."""
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
                is_again = standing is not None and bool(standing.reason)  # everybody begins anew
                in_loop, base = True, base if is_again else time
            elif isinstance(event, events.LoopEnded):
                in_loop = False
        self._in_loop, self._base = in_loop, base
        return [*found, standing] if standing is not None and standing.reason else found

    def _look_for_silence(self, last: MetricLine | None, line: MetricLine, *, is_explained: bool) -> None:
        """A long time without a step may be explained later."""
        if last is None:
            return
        seconds = line.time - last.time
        usual = statistics.median(self._paces) if self._paces and seconds >= LONG else math.inf
        if seconds >= TIMES * usual and not is_explained and seconds <= line.seconds + SLACK:  # else it was no training
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
