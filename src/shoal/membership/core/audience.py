"""Who is connected to the coordinator, and the instructions that the core has given so far.

Guarantees that nothing is sent to a closed client. Not here: decisions (`core`).
"""

from __future__ import annotations

from shoal.events import AnyEvent
from shoal.membership.core.decisions import Decision
from shoal.membership.core.protocol import (
    CatchUp,
    Close,
    DiscardCheckpoint,
    End,
    Instruction,
    Publish,
    RecordEvent,
    Send,
    WriteDecision,
)
from shoal.membership.publisher import PublishRequest
from shoal.wire.messages import CoordinatorMessage


class Audience:
    """Connected clients by number, each a worker or a watcher."""

    def __init__(self) -> None:
        self.launcher: int | None = None  # the first client that said it is the launcher; kept after it has gone
        self._workers: dict[int, int] = {}  # numbers of workers by client
        self._watchers: dict[int, None] = {}  # in order of arrival
        self._gone: set[int] = set()  # clients whose connection is closed
        self._out: list[Instruction] = []

    def take(self) -> tuple[Instruction, ...]:
        """The instructions so far, once."""
        instructions, self._out = tuple(self._out), []
        return instructions

    # Who is there

    def has_gone(self, client: int) -> bool:
        return client in self._gone

    def is_new(self, client: int) -> bool:
        return client not in self._workers and client not in self._watchers

    def worker_of(self, client: int) -> int | None:
        """The worker's number, None for a watcher or a stranger."""
        return self._workers.get(client)

    @property
    def worker_count(self) -> int:
        return len(self._workers)

    @property
    def has_watchers(self) -> bool:
        """A watcher may start processes, and sees them end."""
        return bool(self._watchers)

    def add_worker(self, client: int, number: int) -> None:
        self._workers[client] = number

    def add_watcher(self, client: int, *, is_launcher: bool) -> None:
        self._watchers[client] = None
        if is_launcher and self.launcher is None:
            self.launcher = client

    def remove(self, client: int) -> None:
        self._gone.add(client)
        self._workers.pop(client, None)
        self._watchers.pop(client, None)

    def watchers(self) -> tuple[int, ...]:
        return tuple(self._watchers)

    def workers(self) -> tuple[int, ...]:
        return tuple(self._workers)

    # What they are told

    def send(self, clients: tuple[int, ...], message: CoordinatorMessage) -> None:
        if clients:
            self._out.append(Send(clients, message))

    def write_decision(self, decision: Decision) -> None:
        """Instructions from here on depend on this decision."""
        self._out.append(WriteDecision(decision))

    def record(self, event: AnyEvent) -> None:
        self._out.append(RecordEvent(event, self.watchers()))

    def catch_up(self, client: int) -> None:
        self._out.append(CatchUp(client))

    def close(self, client: int) -> None:
        self._out.append(Close(client))

    def end(self, exit_code: int) -> None:
        self._out.append(End(exit_code))

    # What the publisher is told

    def publish(self, request: PublishRequest) -> None:
        self._out.append(Publish(request))

    def discard(self, checkpoint: str) -> None:
        self._out.append(DiscardCheckpoint(checkpoint))
