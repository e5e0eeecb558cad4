"""When a checkpoint is due on one worker: by steps, by seconds, because the script asked, or because one is owed. Pure.

The caller says what time it is, which step it is, and what the exchange showed of the other workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.job_config import CheckpointRhythm

ASKED = "the script asked for it"


@dataclass(frozen=True)
class Due:
    """A checkpoint that all workers make now."""

    reason: str
    mark: str = ""


@dataclass(frozen=True)
class Deferred:
    """A checkpoint is due and cannot be made yet."""

    is_new: bool  # this is the first time that it is put off


class Timetable:
    def __init__(self, rhythm: CheckpointRhythm, *, now: float) -> None:
        """Times are seconds of any clock that never goes back."""
        self._rhythm = rhythm
        self._began = now  # when the last checkpoint, or else the first loop, began
        self._has_begun = False  # a loop or a checkpoint has begun
        self._wanted: str | None = None  # the mark, where the script asked for a checkpoint
        self._owed = False  # a checkpoint was due when none could be made

    @property
    def is_periodic(self) -> bool:
        return self._rhythm.steps is not None or self._rhythm.seconds is not None

    @property
    def is_asked(self) -> bool:
        return self._wanted is not None

    @property
    def is_marked(self) -> bool:
        """The script asked for a checkpoint with a mark."""
        return bool(self._wanted)

    def loop_begins(self, now: float) -> None:
        """The first loop starts the clock; later loops do not, since they may be shorter than the interval."""
        if not self._has_begun:
            self._began, self._has_begun = now, True

    def begins(self, now: float) -> None:
        """A checkpoint is being made."""
        self._began, self._has_begun = now, True

    def ask(self, mark: str) -> None:
        self._wanted = mark

    def take_asked(self) -> str | None:
        """The mark of a checkpoint that was asked for and not made. The request is dropped."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def owe(self) -> None:
        """A checkpoint was due in a step that broke, or was lost."""
        self._owed = True

    def reason(self, step: int, now: float) -> str | None:
        """Why this worker wants a checkpoint once `step` is applied; None where it does not."""
        if self._wanted is not None:
            return ASKED
        steps, seconds = self._rhythm.steps, self._rhythm.seconds
        if steps is not None and (step % steps == 0 or self._owed):
            return self._occasion
        if seconds is not None and (self._owed or now - self._began >= seconds):
            return self._occasion
        return None

    @property
    def _occasion(self) -> str:
        """Why workers want checkpoints that this one has not asked for: all have the same rhythm."""
        if self._rhythm.steps is not None:
            return f"every {self._rhythm.steps} steps"
        return ASKED if self._rhythm.seconds is None else f"every {self._rhythm.seconds:g} seconds"

    def decide(self, step: int, now: float, *, some_are_busy: bool) -> Due | Deferred:
        """Some worker wants a checkpoint, as all have seen: every worker decides alike."""
        if some_are_busy:
            is_new, self._owed = not self._owed, True
            return Deferred(is_new)
        # Where workers run free, another worker's step or clock may have made the checkpoint due.
        due = Due(self.reason(step, now) or self._occasion, self._wanted or "")
        self._owed, self._wanted = False, None
        return due
