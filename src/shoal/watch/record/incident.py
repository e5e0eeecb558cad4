"""One thing that went wrong in a job: what happened, what was decided and why, and what it cost. See `incidents`."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal import events
from shoal.watch.wording import first_line

MOST_WORDS = 12  # happenings and decisions of one incident
MOST_SPANS = 100  # standstills of one incident whose times are known


@dataclass(eq=False)
class Incident:
    time: float  # of its first sign, seconds since 1970
    go: int = 0  # of the job, counted from 1
    happened: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)  # kinds of its faults on purpose
    workers: set[int] = field(default_factory=set)  # that the incident is about
    lost: set[int] = field(default_factory=set)  # members that died, were expelled, failed or handed over
    came: set[int] = field(default_factory=set)  # newcomers
    is_stop: bool = False  # an exchange broke: no step is applied until training resumes
    is_new_go: bool = False  # the job was started again at an earlier step than it had reached
    is_open: bool = True
    lasts: float = 0.0  # seconds that a fault on purpose lasts
    waited_from: float | None = None  # when there were too few workers
    resumed: float | None = None  # time of the first step after it
    ended: float | None = None  # time of the job's end, if no step came after the incident
    step: int | None = None  # that step
    seconds: float = 0.0  # from the last applied step before each standstill to the first one after it
    standstills: int = 0  # number of standstills; between two of one incident a step may be applied
    spans: list[tuple[float, float]] = field(default_factory=list)  # times of the first `MOST_SPANS` standstills
    steps_redone: int = 0
    samples_redone: int = 0
    taken_back: int = 0  # of those, steps that had been applied
    copied: int = 0  # bytes of state that workers copied from others
    copy_seconds: float = 0.0  # the longest of those copies
    _sign: str = ""  # the first step that was void, or why the job waits: for incidents that nothing else explains

    @property
    def is_fault(self) -> bool:
        """Whether something went wrong. Letting newcomers in costs a moment too, but is no fault."""
        return bool(self.happened) or not self.came

    @property
    def is_injected(self) -> bool:
        return bool(self.faults)

    @property
    def end(self) -> float:
        """When the incident stopped disturbing the job, as far as is known."""
        return max(self.time + self.lasts, self.resumed or self.ended or 0.0)

    @property
    def story(self) -> list[str]:
        """What happened."""
        if self.happened:
            return self.happened
        if self.came:
            return [f"{_workers(self.came)} came in"]
        return [self._sign or "the members regrouped"]

    def without_progress(self, step_seconds: float, *, last: float | None = None) -> float:
        """Seconds in which no step was applied, beyond what steps take. `last`: time of the last step of its go."""
        if not self.is_stop:
            return 0.0
        lost = max(0.0, self.seconds - self.standstills * step_seconds)
        if self.resumed is None and self.ended is not None:
            lost += max(0.0, self.ended - (self.time if last is None else last) - step_seconds)
        return lost

    def stand_still(self, event: events.ProgressResumed, until: float) -> None:
        """Training stood still, maybe since before the first sign: silence is noticed late."""
        self.seconds += max(0.0, event.seconds)
        self.standstills += 1
        self.steps_redone += event.redone
        self.samples_redone += event.samples_redone
        self.taken_back += event.taken_back
        if len(self.spans) < MOST_SPANS:
            self.spans.append((until - max(0.0, event.seconds), until))

    def happen(self, text: str) -> None:
        _put(self.happened, text)

    def decide(self, text: str) -> None:
        _put(self.decided, text)

    def void(self, event: events.StepVoided) -> None:
        self._sign = self._sign or f"step {event.step} was void in {event.operation}: {first_line(event.reason)}"

    def wait(self, event: events.Waiting, time: float) -> None:
        self.waited_from = time if self.waited_from is None else self.waited_from
        self._sign = self._sign or first_line(event.reason)
        here = f"{event.workers} of {event.needed} workers are here"
        self.decide(f"the job waits, {here}: {first_line(event.reason)}")


@dataclass
class Counts:
    """Sums over the whole job, including incidents that are no longer told one by one."""

    lost: set[tuple[int, int]] = field(default_factory=set)  # go of the job, and member
    came: set[tuple[int, int]] = field(default_factory=set)  # go of the job, and newcomer
    expelled: set[tuple[int, int]] = field(default_factory=set)  # of those that were lost
    servers: set[tuple[int, int]] = field(default_factory=set)  # go of the job, and server that was lost
    void: int = 0  # tries that were done again
    taken_back: int = 0  # steps that had been applied and were done again, while the job ran
    differed: int = 0
    coordinators: int = 0  # how often one came back
    faults: int = 0  # on purpose


def _put(words: list[str], text: str) -> None:
    if text and text not in words and len(words) < MOST_WORDS:
        words.append(text)


def _workers(numbers: set[int]) -> str:
    named = ", ".join(map(str, sorted(numbers)[:16])) + (", ..." if len(numbers) > 16 else "")
    return f"worker {named}" if len(numbers) == 1 else f"workers {named}"
