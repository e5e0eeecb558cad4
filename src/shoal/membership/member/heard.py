"""What a worker knows from its coordinator, and which messages interrupt the worker's current exchange. Pure.

Messages in, interruptions out. Not here: the connection (`line`), and threads that wait for a message (`client`).
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
    RegroupWish,
    Released,
    StopNotice,
    Welcome,
    WrittenDown,
)

SETTLED_KEPT = 64  # checkpoints whose outcome is remembered; a worker asks about its last one


@dataclass(frozen=True)
class Interruption:
    """Exchanges that are in flight have become useless."""

    reason: str
    below: int | None = None  # concerns only generations with a lower number; None: all generations


class Heard:
    def __init__(self, worker: int) -> None:
        self.generation: Generation | None = None  # the newest, whether this worker is in it or was left out
        self.stop_reason: str | None = None
        self.ended: Ended | None = None
        self.lost: str | None = None  # why the coordinator will say nothing more
        self.settled: dict[str, bool] = {}  # whether each checkpoint was published, by name, oldest first
        self.expulsion: Expelled | None = None  # after the newest generation formed
        self.briefing: Briefing | None = None  # the newest since the newest generation formed; None once it is taken
        self.was_member = False  # of any generation
        self.is_written_down = False  # the coordinator has this worker's last word
        self.is_released = False  # the script is done, and the worker need not wait for the others any more
        self._worker = worker
        self._wish: RegroupWish | None = None

    @property
    def number(self) -> int:
        """Number of the newest generation; 0 for none."""
        return 0 if self.generation is None else self.generation.number

    @property
    def is_member(self) -> bool:
        """This worker is in the newest generation."""
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
            case WrittenDown():
                self.is_written_down = True
            case Released():
                self.is_released = True
            case Ended():
                self.ended = message
                return Interruption(message.text)
        return None

    def welcomed_back(self, welcome: Welcome) -> Interruption | None:
        """A new connection was welcomed. Generations may have formed meanwhile, with this worker or without."""
        if welcome.is_member and welcome.generation is not None:
            return self._formed(welcome.generation)
        if self.is_member:
            reason = "the coordinator went on without this worker while the connection to it was broken"
            return self._expelled(Expelled(generation=self.number, reason=reason))
        return None

    def interruption(self, generation: int) -> str | None:
        """Why work in this generation has become useless; None while it has not."""
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
        self.briefing = None  # it is older than this generation: a worker that was left out says `Ready` again
        return None if is_first else Interruption(generation.reason, below=generation.number)

    def _expelled(self, message: Expelled) -> Interruption | None:
        if message.generation < self.number:
            return None  # this worker has been let in again since
        self.expulsion = message
        return Interruption(message.reason, below=message.generation + 1)
