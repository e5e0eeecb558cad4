"""A watcher's line to the coordinator: connects in a thread, and again whenever it breaks.

`receive` returns every message once, in order; it never blocks and never raises. After a break the coordinator repeats
recent events, and the line leaves out those that it has already returned. Not here: the messages
(`membership.watcher`), and what to do when nobody answers.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.membership.watcher import WatcherClient
from shoal.wire.messages import Ended, Enlisted, Happened

REMEMBERED = 4000  # times of returned events; the coordinator repeats fewer


@dataclass(frozen=True)
class Connected:
    """The coordinator answers."""


@dataclass(frozen=True)
class Broke:
    """The connection broke; the line does not connect again by itself."""

    reason: str


@dataclass(frozen=True)
class NoAnswer:
    """Nobody could be reached, or the coordinator turned this process away."""

    reason: str


News = Connected | Broke | NoAnswer | Happened | Enlisted | Ended


class CoordinatorLine:
    """Driven by one thread."""

    def __init__(self, connect: Callable[[], WatcherClient], client: WatcherClient | None = None) -> None:
        """`connect` blocks until it has a client or raises ShoalError. `client`: an existing connection, if any."""
        self._connect = connect
        self._client = client
        self._answers: queue.SimpleQueue[WatcherClient | ShoalError] = queue.SimpleQueue()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._trying = False
        self._closed = threading.Event()
        self._shown: dict[float, None] = {}  # times, oldest first

    @property
    def is_up(self) -> bool:
        return self._client is not None

    def open(self) -> None:
        """Begin to connect, unless that is going on or done."""
        if self._trying or self.is_up:
            return
        self._trying = True
        threading.Thread(target=self._try, name="shoal-connect", daemon=True).start()

    def send(self, say: Callable[[WatcherClient], None]) -> None:
        """Send something if the line is up. The caller repeats what may be lost with a coordinator."""
        if self._client is not None:
            with contextlib.suppress(ShoalError):  # reading will report why nothing can be sent
                say(self._client)

    def fileno(self) -> int:
        """Readable when `receive` has something to return. Changes whenever the line goes up or down."""
        return self._bell.fileno() if self._client is None else self._client.fileno()

    def receive(self) -> list[News]:
        """What came since the last call."""
        news: list[News] = []
        if self._client is None:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(16)
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get_nowait()
                self._trying = False
                if isinstance(answer, ShoalError):
                    return [NoAnswer(str(answer))]
                self._client = answer
                news.append(Connected())
        try:
            while self._client is not None and (message := self._client.receive(0.0)) is not None:
                if not isinstance(message, Happened) or self.is_news(message.time):
                    news.append(message)
        except ShoalError as error:
            self.drop()
            news.append(Broke(str(error)))
        return news

    def is_news(self, time: float) -> bool:
        """Whether an event is new, by its time, and remember it. No two events have the same time."""
        if time in self._shown:
            return False
        self._shown[time] = None
        if len(self._shown) > REMEMBERED:
            del self._shown[next(iter(self._shown))]
        return True

    def drop(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Close the line. An attempt to connect that is under way ends by itself, and its connection is closed."""
        self._closed.set()
        self.drop()
        self._discard()
        self._bell.close()
        self._ringer.close()

    def _try(self) -> None:
        """Runs in a thread: a coordinator that first reads a slow store must not keep the launcher from its signals."""
        try:
            answer: WatcherClient | ShoalError = self._connect()
        except ShoalError as error:
            answer = error
        self._answers.put(answer)
        if self._closed.is_set():  # `close` may have come before or after the line above: one of the two discards
            self._discard()
            return
        with contextlib.suppress(OSError):  # closed meanwhile
            self._ringer.send(b"x")

    def _discard(self) -> None:
        """Drop an answer that is no longer wanted."""
        with contextlib.suppress(queue.Empty):
            answer = self._answers.get_nowait()
            if isinstance(answer, WatcherClient):
                answer.close()
