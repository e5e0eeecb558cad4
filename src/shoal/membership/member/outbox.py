"""What a worker has to tell the coordinator, over as many connections as that takes. Pure.

Bytes leave in order. When a connection breaks, the next one first gets, whole, the message that was cut in two and all
messages whose effect has not been seen: reports of the last steps (the coordinator may have died with them), the notice
that this worker waits for a generation or is done, parts of checkpoints that are not settled, a last word. Other
messages that the old connection had taken may be lost with it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from shoal.events import StepsApplied
from shoal.values import Unreached
from shoal.wire.messages import (
    Done,
    ExchangeBroken,
    Failed,
    Heartbeat,
    Leave,
    Message,
    PartFailed,
    PartWritten,
    Ready,
    Report,
    encode,
)

MAX_WAITING = 16 * 1024 * 1024  # bytes; beyond, the oldest reports of events are dropped
# How many reports of steps, and rows in them, are repeated on a new connection: while the coordinator waits for a
# slower worker it may have written none of them. A worker makes four reports per second.
RECENT_REPORTS, RECENT_ROWS = 240, 3000
MAX_PARTS = 64  # parts of checkpoints that are remembered; a worker asks about its last one

Notice = Ready | ExchangeBroken | Done
Part = PartWritten | PartFailed


class Outbox:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, bytes]] = deque()  # in order, encoded
        self._kept: list[Message] = []  # in order: sent again when a connection broke
        self._steps: deque[StepsApplied] = deque()  # recent reports of steps, sent or not
        self._rows = 0  # in `_steps`
        self._begun = 0  # bytes of the first waiting message that the connection has taken
        self._size = 0  # bytes of all waiting messages

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, message: Message) -> None:
        if isinstance(message, Notice):  # the newest notice replaces earlier ones
            self._kept = [kept for kept in self._kept if not isinstance(kept, Notice)]
        if isinstance(message, Notice | Part | Leave | Failed):
            self._kept.append(message)
        if isinstance(message, Report):
            self._remember([event for event in message.events if isinstance(event, StepsApplied) and event.rows])
        parts = [kept for kept in self._kept if isinstance(kept, Part)]
        if len(parts) > MAX_PARTS:
            self._kept.remove(parts[0])
        self._append(message)

    def generation_heard(self, number: int) -> None:
        """The generation answers notices from earlier generations."""
        self._kept = [kept for kept in self._kept if not (isinstance(kept, Notice) and kept.generation < number)]

    def briefed(self) -> None:
        """This worker was told of more calls of the job: it is not ready until it has compared them."""
        self._kept = [kept for kept in self._kept if not isinstance(kept, Ready)]

    def settled(self, checkpoint: str) -> None:
        self._kept = [kept for kept in self._kept if not (isinstance(kept, Part) and kept.checkpoint == checkpoint)]

    def next_bytes(self) -> memoryview:
        """The bytes to send next; empty when nothing waits."""
        return memoryview(self._waiting[0][1])[self._begun :] if self._waiting else memoryview(b"")

    def taken(self, count: int) -> None:
        """The connection took the first `count` bytes of `next_bytes`."""
        self._begun += count
        if self._begun == len(self._waiting[0][1]):
            self._size -= self._begun
            self._begun = 0
            self._waiting.popleft()

    def start_over(self, clock: float) -> None:
        """Queue everything for a new connection. `clock`: the time now by this worker's clock."""
        self._kept = [_without_links(kept) for kept in self._kept]
        waiting = [_without_links(message) for message, _ in self._waiting if not isinstance(message, Heartbeat)]
        again = [kept for kept in self._kept if not any(kept == message for message in waiting)]
        self._waiting.clear()
        self._begun = self._size = 0
        for message in (*(Report(events=(event,)) for event in self._steps), *again, *waiting):
            self._append(_sent_at(message, clock))

    def clear(self) -> None:
        self._waiting.clear()
        self._kept.clear()
        self._steps.clear()
        self._rows = self._begun = self._size = 0

    def _remember(self, reports: list[StepsApplied]) -> None:
        for report in reports:
            if len(self._steps) == RECENT_REPORTS:
                self._rows -= len(self._steps.popleft().rows)
            self._steps.append(report)
            self._rows += len(report.rows)
        while self._rows > RECENT_ROWS and len(self._steps) > 1:
            self._rows -= len(self._steps.popleft().rows)

    def _append(self, message: Message) -> None:
        data = encode(message)
        self._waiting.append((message, data))
        self._size += len(data)
        while self._size > MAX_WAITING:
            first = 1 if self._begun else 0  # a message that is partly sent must be finished
            oldest = next((at for at, each in enumerate(self._waiting) if at >= first and _may_go(each[0])), None)
            if oldest is None:
                return
            self._size -= len(self._waiting[oldest][1])
            del self._waiting[oldest]


def _without_links(message: Message) -> Message:
    """Peers that were out of reach before the connection broke may be in reach now; the next generation will show."""
    return msgspec.structs.replace(message, unreached=Unreached()) if isinstance(message, ExchangeBroken) else message


def _sent_at(message: Message, clock: float) -> Message:
    """Totals and rows of a report may arrive twice without harm; only its sending time must be new."""
    if not isinstance(message, Report) or not any(isinstance(event, StepsApplied) for event in message.events):
        return message
    replace = msgspec.structs.replace
    events = (replace(event, clock=clock) if isinstance(event, StepsApplied) else event for event in message.events)
    return Report(events=tuple(events))


def _may_go(message: Message) -> bool:
    return isinstance(message, Report | Heartbeat)
