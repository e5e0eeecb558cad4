"""What a worker knows from its coordinator, and which of it ends what the worker is blocked in. Pure.

Messages in, interruptions out. Not here: the connection they came through and who waits for them (`client`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.values import Generation
from shoal.wire.messages import (
    Briefing,
    CheckpointSettled,
    CoordinatorMessage,
    Ended,
    Expelled,
    Formed,
    Noted,
    RegroupWish,
    Released,
    StopNotice,
    Welcome,
)

SETTLED_KEPT = 64  # checkpoints whose outcome is remembered; a worker asks about its last one


@dataclass(frozen=True)
class Interruption:
    """What is in flight is of no more use."""

    reason: str
    below: int | None = None  # in generations with a lower number only; None: in all of them


class Heard:
    def __init__(self, worker: int) -> None:
        self.generation: Generation | None = None  # the newest one that was formed with this worker, or left it out
        self.stop_reason: str | None = None
        self.ended: Ended | None = None
        self.lost: str | None = None  # why nothing more will be heard
        self.settled: dict[str, bool] = {}  # checkpoints by name, oldest first: were they published?
        self.expulsion: Expelled | None = None  # since the newest generation
        self.briefing: Briefing | None = None  # the newest since the newest generation, until somebody takes it
        self.was_member = False  # of any generation
        self.is_noted = False  # this worker's last word is
        self.is_released = False  # its script is done, and it need not wait for the others any more
        self._worker = worker
        self._wish: RegroupWish | None = None

    @property
    def number(self) -> int:
        """Of the newest generation that was heard of; 0 for none."""
        return 0 if self.generation is None else self.generation.number

    @property
    def is_member(self) -> bool:
        """Of that generation."""
        is_in = self.generation is not None and self.generation.rank_of(self._worker) is not None
        return is_in and self.expulsion is None

    @property
    def regroup_wish(self) -> str | None:
        is_current = self._wish is not None and self._wish.generation >= self.number and self.is_member
        return self._wish.reason if self._wish is not None and is_current else None

    def take_in(self, message: CoordinatorMessage) -> Interruption | None:
        match message:
            case Formed():
                return self._formed(message.generation)
            case Expelled():
                return self._expelled(message)
            case RegroupWish():
                self._wish = message
            case Briefing():
                self.briefing = message
            case StopNotice():
                self.stop_reason = message.reason
            case CheckpointSettled():
                self.settled[message.checkpoint] = message.published
                if len(self.settled) > SETTLED_KEPT:
                    del self.settled[next(iter(self.settled))]
            case Noted():
                self.is_noted = True
            case Released():
                self.is_released = True
            case Ended():
                self.ended = message
                return Interruption(message.text)
        return None

    def welcomed_back(self, welcome: Welcome) -> Interruption | None:
        """On a new connection. Generations may have formed meanwhile, with this worker or without."""
        if welcome.is_member and welcome.generation is not None:
            return self._formed(welcome.generation)
        if self.is_member:
            reason = "the coordinator went on without this worker while the connection to it was broken"
            return self._expelled(Expelled(generation=self.number, reason=reason))
        return None

    def interruption(self, generation: int) -> str | None:
        """Why work in this generation is of no more use; None while it is."""
        if self.ended is not None:
            return self.ended.text
        if self.lost is not None:
            return self.lost
        if self.generation is not None and self.generation.number > generation:
            return self.generation.reason
        if self.expulsion is not None and self.expulsion.generation >= generation:
            return self.expulsion.reason
        return None

    def _formed(self, generation: Generation) -> Interruption | None:
        if generation.number <= self.number:
            return None
        is_first = self.generation is None
        self.generation, self.expulsion = generation, None
        self.was_member |= self.is_member
        self.briefing = None  # of calls before this one: a worker that is still outside says so again
        return None if is_first else Interruption(generation.reason, below=generation.number)

    def _expelled(self, message: Expelled) -> Interruption | None:
        if message.generation < self.number:
            return None  # it has been let in again since
        self.expulsion = message
        return Interruption(message.reason, below=message.generation + 1)
