"""A simulated launcher: starts workers, reports how they ended if it sees that, enlists replacements.

Stands for `launching.run_job` with its supervision, for `shoal join` on other machines, and for a user who starts the
coordinator again. A worker on another machine may end without a report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.plan.world.network import COORDINATOR, LAUNCHER, Network, StreamEnd
from shoal.plan.world.virtual_time import Process, VirtualTime
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    CoordinatorMessage,
    Enlist,
    Enlisted,
    Message,
    ProcessExited,
    Turned,
    Watch,
    Welcome,
    encode,
)

RETRY = 0.2  # seconds between two attempts to reach the coordinator


class LauncherSurroundings(Protocol):
    time: VirtualTime
    network: Network

    def start_worker(self, number: int) -> None: ...


class Launcher:
    def __init__(self, around: LauncherSurroundings, is_over: Callable[[], bool]) -> None:
        self._around = around
        self._is_over = is_over
        self._process = Process(around.time)
        self._end: StreamEnd | None = None
        self._is_welcome = False
        self._exits: list[
            ProcessExited
        ] = []  # all that it saw: it repeats them, since the coordinator may have forgotten them
        self._asked = 0  # replacements that have no number yet
        self._connect()

    def worker_ended(self, worker: int, code: int) -> None:
        """It saw how a process ended."""
        self._process.after(self._around.time.between(0.0, 0.3), lambda: self._report(worker, code))

    def enlist(self) -> None:
        """One more worker is to be started."""
        if not self._is_over():
            self._asked += 1
            self._say(Enlist())

    def _report(self, worker: int, code: int) -> None:
        exited = ProcessExited(worker=worker, code=code, reason="simulated")
        self._exits.append(exited)
        self._say(exited)

    def _say(self, message: Message) -> None:
        if self._is_welcome and self._end is not None:
            self._end.send(encode(message))

    def _connect(self) -> None:
        if self._is_over():
            return
        end = self._end = self._around.network.connect(LAUNCHER, self._process, COORDINATOR, None)
        if end is None:
            self._process.after(RETRY, self._connect)
            return
        end.send(encode(Watch(version=PROTOCOL_VERSION)))
        end.listen(self._received, lambda: self._closed(end))

    def _closed(self, end: StreamEnd) -> None:
        if end is self._end:
            self._is_welcome = False
            self._process.after(RETRY, self._connect)

    def _received(self, message: CoordinatorMessage) -> None:
        if isinstance(message, Welcome):
            self._is_welcome = True
            for exited in self._exits:
                self._say(exited)
            for _ in range(self._asked):
                self._say(Enlist())
        elif isinstance(message, Enlisted):
            self._asked -= 1
            self._around.start_worker(message.worker)
        elif isinstance(message, Turned):
            self._is_welcome = False
