"""The background thread of a worker's client: it serves all connections, and runs tasks for other threads.

One lock, `changed`, guards all of the client's state: this thread holds it while it handles messages and tasks, other
threads while they look or wait. Connections belong to this thread alone. Not here: what is said (`client_servers`,
`parameter_client`).
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from shoal.parameters.connections.switchboard import Switchboard

IDLE_SECONDS = 1.0  # the longest sleep; its value does not matter


class ClientThread:
    """`do` and `close` may be called from any thread, the rest only from this one."""

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.board = Switchboard()
        self.failure: BaseException | None = None  # what ended the thread: a bug
        self._tasks: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # heap by time.monotonic
        self._numbers = itertools.count()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.board.watch(self._wake, self._woken)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Have `task` called in the thread, with the lock held."""
        self._tasks.append(task)
        with self.changed:
            if not self._is_ending:
                os.eventfd_write(self._wake, 1)

    def later(self, seconds: float, task: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), task))

    def close(self) -> None:
        """Ends the thread and closes all connections. Safe to call twice."""
        with self.changed:
            if self._is_ending:
                return
            self._is_ending = True
            os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self.board.close()
        os.close(self._wake)

    def _woken(self) -> None:
        os.eventfd_read(self._wake)

    def _run(self) -> None:
        try:
            while not self._is_ending:
                self._do_tasks()
                self.board.turn(self._until_next_timer())
        except BaseException as error:  # nothing above would report it; a thread that waits raises it
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def _do_tasks(self) -> None:
        now = time.monotonic()
        with self.changed:
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            while self._tasks:
                self._tasks.popleft()()

    def _until_next_timer(self) -> float:
        if self._tasks:
            return 0.0
        if not self._timers:
            return IDLE_SECONDS
        return min(IDLE_SECONDS, max(0.0, self._timers[0][0] - time.monotonic()))
