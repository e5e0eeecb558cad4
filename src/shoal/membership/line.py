"""A worker's line to the coordinator: a thread that sends, receives, and connects again when the connection broke.

Handles bytes, time and the connection; messages pass through an `LineUser`. Not here: connecting once and the handshake
(`channel`), the order of messages to send (`outbox`), what messages mean (`client`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import AddressUnavailable, ShoalError
from shoal.membership import channel
from shoal.membership.member.outbox import Outbox
from shoal.membership.record.worker_clocks import own_clock
from shoal.transport.connection import silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.values import Address
from shoal.wire.message_frames import MessageBuffer
from shoal.wire.messages import CoordinatorMessage, Heartbeat, Join, Message, Welcome

FLUSH_SECONDS = 1.0  # how long closing waits for queued messages to be sent
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between attempts to reach a coordinator that is away
HELD_UP = 1.0  # seconds; if a wait took this much longer than asked, the process was stopped
ANSWER_SECONDS = 10.0  # limit of one attempt to connect again
CLOSED = "it closed the connection"


@dataclass(frozen=True)
class LineConfig:
    address: Address
    token: str
    interval: float  # seconds between heartbeats
    silence_limit: float  # seconds after which a connection whose packets vanish counts as broken
    patience: float  # seconds after which a coordinator that is away is lost


class LineUser(Protocol):
    """The user of a line. All calls come from the line's thread."""

    @property
    def is_over(self) -> bool:
        """The job is over: do not connect again when the connection closes."""

    def beat(self) -> Heartbeat: ...

    def take_in(self, message: CoordinatorMessage) -> None:
        """A ShoalError ends the line."""

    def all_heard(self) -> None:
        """Everything that had arrived was taken in."""

    def first_words(self) -> Join:
        """The first message of the next connection."""

    def back(self, welcome: Welcome) -> None:
        """There is a new connection."""

    def lost(self, reason: str) -> None:
        """The line has ended, and was not closed from this side."""


class Line:
    """`send`, `flush` and `close` may be called from any thread."""

    def __init__(
        self, connection: Endpoint, buffer: MessageBuffer[CoordinatorMessage], config: LineConfig, ear: LineUser
    ) -> None:
        """`connection` has been welcomed; the line owns it from now on. `start` starts the thread."""
        self.address = config.address
        self.outbox = Outbox()
        self.sending = threading.Condition()  # guards the outbox and the writing side of the socket
        self._config = config
        self._ear = ear
        self._buffer = buffer
        self._connection: Endpoint | None = None  # None while the coordinator is away
        self._closing = False
        self._wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_writer: int | None = wake_writer  # None once the thread has ended
        self._use(connection)
        _open_lines.add(self)
        self._thread = threading.Thread(target=self._run, name="shoal-coordinator-client", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # From any thread: send what the socket takes at once; the line's thread sends the rest

    def send(self, message: Message) -> None:
        with self.sending:
            if self._closing or self._wake_writer is None:
                return
            self.outbox.add(message)
            self._push()
            is_waiting = bool(self.outbox)
        if is_waiting:
            self._wake()

    def flush(self, while_away: float = FLUSH_SECONDS) -> None:
        """Wait until all messages are sent; `while_away`: seconds to wait for a coordinator that is away."""
        with self.sending:
            self.sending.wait_for(lambda: not self.outbox, FLUSH_SECONDS)
            if self._connection is None:
                self.sending.wait_for(lambda: not self.outbox, while_away - FLUSH_SECONDS)

    def close(self) -> None:
        """Send what is waiting, for a second at most, and end thread and connection. Safe to call twice."""
        self.flush()
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_in_child(self) -> None:
        """After a fork: the child's copy of the socket must not keep the connection open when this worker dies."""
        if self._connection is not None:
            self._connection.close()

    def _push(self) -> None:
        """Send what the socket takes. The reading side will find any error."""
        with contextlib.suppress(OSError):  # a BlockingIOError too: the socket is full
            while self.outbox and self._connection is not None:
                self.outbox.taken(self._connection.send(self.outbox.next_bytes()))
        if not self.outbox:
            self.sending.notify_all()

    def _wake(self) -> None:
        with self.sending, contextlib.suppress(BlockingIOError):  # a full pipe wakes the thread anyway
            if self._wake_writer is not None:
                os.write(self._wake_writer, b"!")

    # The thread

    def _run(self) -> None:
        try:
            reason = self._stay()
        except (OSError, ShoalError) as error:
            reason = f"{error}"
        except Exception as error:  # even after an unexpected error, nobody may wait for this thread for ever
            reason = f"its client failed: {error!r}"
        finally:
            self._release()
        if not self._closing and not self._ear.is_over:
            self._ear.lost(reason)

    def _release(self) -> None:
        _open_lines.discard(self)
        with self.sending:
            self.outbox.clear()
            if self._connection is not None:
                self._connection.close()
            os.close(self._wake_reader)
            if self._wake_writer is not None:
                os.close(self._wake_writer)
            self._wake_writer = None
            self.sending.notify_all()

    def _stay(self) -> str:
        """Keep in touch until the line is closed from this side or the coordinator is gone for good; returns why."""
        while True:
            try:
                reason = self._converse()
            except OSError as error:
                reason = error.strerror or f"{error}"
            if self._closing:
                self._part()
            if self._closing or self._ear.is_over:
                return reason
            with self.sending:
                assert self._connection is not None
                self._connection.close()
                self._connection = None
            self._come_back(reason)
            if self._closing:
                return reason

    def _come_back(self, reason: str) -> None:
        """Connect again. Raises when it has to give up; returns without a connection if the line is closed."""
        away_since, pause = time.monotonic(), FIRST_PAUSE
        while not self._closing:
            try:
                connection, self._buffer, welcome = channel.connect(
                    self._config.address,
                    self._config.token,
                    self._ear.first_words(),
                    timeout=ANSWER_SECONDS,
                    is_over=lambda: self._closing,
                )
            except AddressUnavailable:
                if time.monotonic() - away_since > self._config.patience:
                    raise AddressUnavailable(reason) from None
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._ear.back(welcome)
            with self.sending:  # in one go: no thread may send the rest of a message that the old connection cut in two
                self._use(connection)
                self.outbox.start_over(own_clock())
                self._push()
            return

    def _use(self, connection: Endpoint) -> None:
        silence.watch_closely(connection, self._config.silence_limit)
        with self.sending:
            self._connection = connection

    def _pause(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(self._wake_reader, 4096)

    def _converse(self) -> str:
        """Read, write and send heartbeats until either side closes the connection; returns why."""
        connection = self._connection
        assert connection is not None
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        is_open = self._read(connection)  # messages may have arrived together with the welcome
        self._take_in_all()
        if not is_open:
            return CLOSED
        next_beat = time.monotonic()
        while not self._closing:
            if (now := time.monotonic()) >= next_beat:
                self.send(self._ear.beat())
                next_beat = now + self._config.interval
            with self.sending:
                poll.register(connection, select.POLLIN | (select.POLLOUT if self.outbox else 0))
            patience = max(0.0, next_beat - now)
            ready = dict(poll.poll(patience * 1000))
            # After a long sleep of this process, messages in the socket may be as old as the sleep.
            was_asleep = time.monotonic() - now - patience > HELD_UP
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            happened = ready.get(connection.fileno(), 0)
            if happened & select.POLLOUT:
                with self.sending:
                    self._push()
            if happened & ~select.POLLOUT:
                is_open = self._read(connection)
                self._take_in_all()
                if not is_open:
                    return CLOSED
                if not was_asleep:
                    self._ear.all_heard()
        return ""

    def _read(self, connection: Endpoint) -> bool:
        """Read everything that is there. False at the end of the stream."""
        try:
            while data := connection.recv(65536):
                self._buffer.feed(data)
        except BlockingIOError:
            return True
        return False

    def _take_in_all(self) -> None:
        while (message := self._buffer.take()) is not None:
            self._ear.take_in(message)

    def _part(self) -> None:
        """Close in good order: closing with unread bytes would reset the connection and lose our last messages."""
        connection = self._connection
        assert connection is not None
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(FLUSH_SECONDS)
            while connection.recv(65536):
                pass


_open_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def _close_in_child() -> None:
    for line in tuple(_open_lines):
        line.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
