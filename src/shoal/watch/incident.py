"""One thing that went wrong in a job: what happened, what was decided and why, and what it cost. See `incidents`."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal import events
from shoal.watch.wording import first_line

MOST_WORDS = 12  # happenings and decisions of one incident


@dataclass(eq=False)
class Incident:
    time: float  # of its first sign, seconds since 1970
    happened: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)  # kinds of faults on purpose in it
    workers: set[int] = field(default_factory=set)  # that it is about
    lost: set[int] = field(default_factory=set)  # members that died, were expelled, failed or handed over
    came: set[int] = field(default_factory=set)  # newcomers
    is_stop: bool = False  # an exchange broke: no step is applied until it is resumed
    is_restored: bool = False  # everybody began again from a checkpoint, or from the top
    is_open: bool = True
    lasts: float = 0.0  # seconds that a fault on purpose lasts
    waited_from: float | None = None  # when there were too few workers
    resumed: float | None = None  # time of the first step after it
    step: int | None = None  # that step
    seconds: float = 0.0  # between the last applied step before and the first one after
    steps_redone: int = 0
    samples_redone: int = 0
    copied: int = 0  # bytes of state that workers copied from others
    copy_seconds: float = 0.0  # the longest of those copies
    _void: str = ""  # why the first step was void, for incidents that nothing else explains

    @property
    def is_fault(self) -> bool:
        """Something went wrong. Otherwise newcomers came in, which costs a moment too."""
        return bool(self.happened) or not self.came

    @property
    def is_injected(self) -> bool:
        return bool(self.faults)

    @property
    def end(self) -> float:
        """Until when it disturbed the job, as far as is known."""
        return max(self.time + self.lasts, self.resumed or 0.0)

    @property
    def story(self) -> list[str]:
        """What happened."""
        if self.happened:
            return self.happened
        if self.came:
            return [f"{_workers(self.came)} came in"]
        return [self._void or "the members regrouped"]

    def without_progress(self, step_seconds: float) -> float:
        """Seconds in which no step was applied, beyond what a step takes."""
        return max(0.0, self.seconds - step_seconds) if self.is_stop else 0.0

    def happen(self, text: str) -> None:
        _put(self.happened, text)

    def decide(self, text: str) -> None:
        _put(self.decided, text)

    def void(self, event: events.StepVoided) -> None:
        self._void = self._void or f"step {event.step} was void in {event.operation}: {first_line(event.reason)}"


@dataclass
class Counts:
    """Over the whole job, with incidents that are no longer told one by one."""

    lost: set[tuple[int, int]] = field(default_factory=set)  # go of the job, and member
    came: set[tuple[int, int]] = field(default_factory=set)  # go of the job, and newcomer
    expelled: int = 0
    differed: int = 0
    coordinators: int = 0  # that came back
    faults: int = 0  # on purpose


def _put(words: list[str], text: str) -> None:
    if text and text not in words and len(words) < MOST_WORDS:
        words.append(text)


def _workers(numbers: set[int]) -> str:
    named = ", ".join(map(str, sorted(numbers)[:16])) + (", ..." if len(numbers) > 16 else "")
    return f"worker {named}" if len(numbers) == 1 else f"workers {named}"
