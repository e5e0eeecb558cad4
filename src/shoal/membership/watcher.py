"""The launcher's client of the coordinator: receives events when polled, and reports ended processes.

Not here: connecting and the handshake (`channel`), a worker's client (`client`).
"""

from __future__ import annotations

import select
import threading
import time
from typing import Self

from shoal.errors import AddressUnavailable, ShoalError
from shoal.events import AnyEvent
from shoal.membership import channel, texts
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.sending import send_all
from shoal.values import Address
from shoal.wire.message_frames import MessageBuffer
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    CoordinatorMessage,
    Ended,
    Enlist,
    Enlisted,
    Happened,
    Inject,
    Message,
    ProcessExited,
    ProcessWorking,
    Report,
    StopRequest,
    Turned,
    Watch,
    Welcome,
    encode,
)


class WatcherClient:
    """The launcher's connection. One thread receives; requests may come from others, but not from signal handlers."""

    def __init__(
        self,
        connection: Endpoint,
        buffer: MessageBuffer[CoordinatorMessage],
        welcome: Welcome,
        address: Address,
    ) -> None:
        """Use `connect`."""
        self.welcome = welcome
        self._connection = connection
        self._buffer = buffer
        self._address = address
        self._sending = threading.Lock()

    @classmethod
    def connect(cls, address: Address, token: str, *, timeout: float, is_launcher: bool = True) -> Self:
        """Watch the job. AddressUnavailable if nobody listens, Refused if the token is wrong or the job says no."""
        first = Watch(version=PROTOCOL_VERSION, is_launcher=is_launcher)
        return cls(*channel.connect(address, token, first, timeout=timeout), address)

    def receive(self, timeout: float) -> Happened | Enlisted | Ended | None:
        """The next message; None if none came in time. AddressUnavailable if the coordinator is gone."""
        deadline = time.monotonic() + timeout
        while True:
            while (message := self._buffer.take()) is not None:
                if isinstance(message, Happened | Enlisted | Ended):
                    return message
                if isinstance(message, Turned):
                    raise self._gone(f"it turned the launcher away: {message.reason}")
            try:
                data = self._connection.recv(65536)
            except BlockingIOError:
                left = deadline - time.monotonic()
                poll = select.poll()  # `select` would refuse descriptors from 1024 on
                poll.register(self._connection, select.POLLIN)
                if left > 0 and poll.poll(left * 1000):
                    continue
                return None
            except OSError as error:
                raise self._gone(error.strerror or str(error)) from None
            if not data:
                raise self._gone("it closed the connection")
            self._buffer.feed(data)

    def request_stop(self, reason: str, *, exit_code: int) -> None:
        """Ask for all loops to end at an agreed step; the job then ends with this code."""
        self._send(StopRequest(reason=reason, exit_code=exit_code))

    def enlist(self) -> None:
        """Ask for the number of one more worker, whose process will be started here; `Enlisted` is the answer."""
        self._send(Enlist())

    def report(self, event: AnyEvent) -> None:
        """Add an event about processes of this machine to the job's record: one of `admission.REPORTED`."""
        self._send(Report(events=(event,)))

    def inject(self, fault: Inject) -> None:
        """Inject a fault into a worker."""
        self._send(fault)

    def process_exited(self, worker: int, code: int, reason: str, *, loss: str = "") -> None:
        """The engine saw a worker's process end. `code` is its exit status, -9 for a SIGKILL. `loss`: what took it."""
        self._send(ProcessExited(worker=worker, code=code, reason=reason, loss=loss))

    def process_working(self, worker: int) -> None:
        """The engine saw a worker's process use the processor: it is alive, heartbeats or not."""
        self._send(ProcessWorking(worker=worker))

    def fileno(self) -> int:
        """For select: readable means that `receive(0)` may have something; call it until it returns None."""
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: Message) -> None:
        with self._sending:
            try:
                send_all(self._connection, encode(message))
            except OSError as error:
                raise self._gone(error.strerror or str(error)) from None

    def _gone(self, reason: str) -> ShoalError:
        return AddressUnavailable(texts.coordinator_gone(self._address, reason))
