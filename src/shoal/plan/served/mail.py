"""Messages between the simulated processes of a job with parameter servers: ordered, delayed, lost with connections.

Unlike in `plan.world.network` there are no streams: a message is an action in the target's process. Links connect
servers to each other, lines connect workers to servers. Not here: what is said.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.plan.world.virtual_time import Action, Process, VirtualTime

Pair = frozenset[Process]


class Mail:
    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self._due: dict[tuple[Process, Process], float] = {}  # when the newest message from one to the other arrives
        self._made: dict[Pair, int] = {}  # by connection between servers: how often it was made or broken
        self._down: set[Pair] = set()
        self.on_connected: Callable[[Process, Process], None] = lambda _one, _other: None  # in the first one's process

    def delay(self) -> float:
        """Seconds: mostly some milliseconds, now and then up to a second."""
        return self.time.between(0.001, 0.02) if self.time.chance(0.95) else self.time.between(0.02, 1.0)

    def send(self, source: Process, target: Process, action: Action) -> None:
        """Messages from one process to another arrive in order."""
        due = max(self._due.get((source, target), 0.0), self.time.now + self.delay())
        self._due[source, target] = due
        self.time.at(due, lambda: target.do(action))

    def send_by_line(self, source: Process, target: Process, action: Action) -> None:
        """Send between servers; the message is lost if there is no connection or if it breaks meanwhile."""
        line = frozenset((source, target))
        made = self._made.get(line, 0)
        if made and line not in self._down:
            self.send(source, target, lambda: action() if self._made[line] == made else None)

    def connect(self, one: Process, other: Process) -> None:
        """Make a new connection; both sides hear of it."""
        line = frozenset((one, other))
        self._made[line] = self._made.get(line, 0) + 1
        self._down.discard(line)
        for here, there in ((one, other), (other, one)):
            self.send_by_line(there, here, partial(self.on_connected, here, there))

    def is_up(self, one: Process, other: Process) -> bool:
        line = frozenset((one, other))
        return line in self._made and line not in self._down

    def was_made(self, one: Process, other: Process) -> bool:
        return frozenset((one, other)) in self._made

    def cut(self, one: Process, other: Process, seconds: float) -> None:
        """Break the connection; it is made again after that many seconds."""
        line = frozenset((one, other))
        if self.is_up(one, other):
            self._made[line] += 1
            self._down.add(line)
            self.time.after(seconds, lambda: self.connect(one, other))


class SimulatedLine:
    """A worker's connection to a server. Once it is closed the worker hears nothing more; the server still may."""

    def __init__(self, mail: Mail, worker: Process, server: Process) -> None:
        self._mail = mail
        self._worker = worker
        self._server = server
        self._is_open = True
        self._is_broken = False

    def to_server(self, action: Action) -> None:
        if not self._is_broken:
            self._mail.send(self._worker, self._server, lambda: None if self._is_broken else action())

    def to_worker(self, action: Action) -> None:
        if self._is_open:
            self._mail.send(self._server, self._worker, lambda: action() if self._is_open else None)

    def close(self) -> None:
        """The worker closes the line; messages on their way to the server still arrive."""
        self._is_open = False

    def break_off(self) -> None:
        """Break the line; messages on their way are lost in both directions."""
        self._is_open, self._is_broken = False, True
