"""A worker's client of the coordinator, with a thread of its own.

`CoordinatorClient` keeps a worker in the job: its thread sends heartbeats and takes in what the coordinator says, while
the training thread computes. Not here: connecting and the handshake (`channel`), the launcher's client (`watcher`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Self

import msgspec

from shoal.errors import AddressUnavailable, WireError, by_name
from shoal.events import AnyEvent
from shoal.membership import channel, reasons
from shoal.values import Address, Generation
from shoal.wire.messages import (
    CheckpointSettled,
    CoordinatorMessage,
    Ended,
    ExchangeBroken,
    Failed,
    Formed,
    Heartbeat,
    Join,
    Leave,
    Message,
    PartFailed,
    PartWritten,
    Report,
    StopNotice,
    Turned,
    Welcome,
    encode,
)

MAX_UNSENT = 16 * 1024 * 1024  # bytes waiting for a coordinator that does not read; beyond, it counts as lost
FLUSH_SECONDS = 1.0  # how long a last word (Leave, Failed, close) waits to get out
SETTLED_KEPT = 64  # checkpoints whose outcome is remembered; a worker asks about its last one


class CoordinatorClient:
    """A worker's connection to the coordinator. All methods may be called from any thread."""

    def __init__(
        self, connection: socket.socket, buffer: channel.MessageBuffer, welcome: Welcome, address: Address
    ) -> None:
        """Use `connect`."""
        self.config = welcome.config
        self.on_interrupt: Callable[[str, int | None], None] | None = None
        self.stop_reason: str | None = None
        self.ended: Ended | None = None
        self._address = address
        self._interval = welcome.heartbeat
        self._connection = connection
        self._buffer = buffer
        self._news = threading.Condition()  # guards generation, settled, ended, stop_reason and lost
        self._generation: Generation | None = None
        self._settled: dict[str, bool] = {}  # checkpoints by name, oldest first: were they published?
        self._lost: str | None = None
        self._position = (0, "start-up")
        self._unsent = bytearray()
        self._sending = threading.Condition()  # guards unsent and the writing side of the socket
        self._closing = False
        self._wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_writer: int | None = wake_writer  # None once the thread has ended
        connection.setblocking(False)
        _open_clients.add(self)
        self._thread = threading.Thread(target=self._run, name="shoal-coordinator-client", daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, address: Address, token: str, join: Join, *, timeout: float) -> Self:
        """Join the job. AddressUnavailable when nobody listens, Refused for a wrong token or when turned away."""
        return cls(*channel.connect(address, token, join, timeout=timeout), address)

    # What the coordinator says

    def wait_for_generation(self, after: int) -> Generation:
        """Block until there is a generation with a higher number. Raises the job's error when the job ends first."""
        with self._news:
            while True:
                self._raise_if_over()
                if self._generation is not None and self._generation.number > after:
                    return self._generation
                self._news.wait()

    def interruption(self, generation: int) -> str | None:
        """Why work in this generation is of no more use; None while it is.

        To be asked after `on_interrupt` has something to act on: news from before that moment is not repeated.
        """
        with self._news:
            if self.ended is not None:
                return self.ended.text
            if self._lost is not None:
                return self._lost
            if self._generation is not None and self._generation.number > generation:
                return self._generation.reason
            return None

    def wait_settled(self, checkpoint: str, timeout: float) -> bool | None:
        """Block until that is known, for `timeout` seconds at most. None also, and at once, when the job is over."""
        with self._news:
            self._news.wait_for(lambda: checkpoint in self._settled or self.is_over, timeout)
            return self._settled.get(checkpoint)

    @property
    def is_over(self) -> bool:
        """The job has ended or the coordinator is lost: nothing more will be heard from it."""
        return self.ended is not None or self._lost is not None

    def _raise_if_over(self) -> None:
        if self.ended is not None:
            raise by_name(self.ended.error, self.ended.text)
        if self._lost is not None:
            raise AddressUnavailable(self._lost)

    # What this worker says

    def set_position(self, step: int, operation: str) -> None:
        """Where the script is; the next heartbeat carries it. No I/O."""
        self._position = (step, operation)

    def report(self, *events: AnyEvent) -> None:
        if events:
            self._send(Report(events=events))

    def part_written(self, part: PartWritten) -> None:
        """This worker's part of a checkpoint is whole and flushed."""
        self._send(part)

    def part_failed(self, part: PartFailed) -> None:
        """This worker's part of a checkpoint could not be written; the job goes on."""
        self._send(msgspec.structs.replace(part, reason=reasons.shortened(part.reason)))

    def exchange_broken(
        self, *, generation: int, step: int, operation: str, peer: int | None, reason: str, at_end: bool = False
    ) -> None:
        """A collective failed. `peer` is the worker number (not the rank) it was waiting for, where that is known."""
        self._send(
            ExchangeBroken(
                generation=generation,
                step=step,
                operation=operation,
                peer=peer,
                reason=reasons.shortened(reason),
                at_end=at_end,
            )
        )

    def failed(self, *, step: int, error: str, text: str) -> None:
        """This worker cannot go on, which ends the job. `error` is a class name from `errors`."""
        self._send(Failed(step=step, error=error, text=reasons.shortened(text)))
        self._flush()

    def leave(self, *, step: int, reason: str) -> None:
        """This worker's script is done."""
        self._send(Leave(step=step, reason=reason))
        self._flush()

    def close(self) -> None:
        """Send what is waiting, for a second at most, and end thread and connection. Safe to call twice."""
        self._flush()
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sending: from the caller's thread as far as the socket takes it, the rest from ours

    def _send(self, message: Message) -> None:
        data = encode(message)
        with self._sending:
            if self._closing or self._wake_writer is None:
                return
            self._unsent += data
            self._push()
            waiting = bool(self._unsent)
        if waiting:
            self._wake()

    def _push(self) -> None:
        """Hand the socket what it takes. Errors are left for the reading side to find."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._sending.notify_all()

    def _flush(self) -> None:
        with self._sending:
            self._sending.wait_for(lambda: not self._unsent, timeout=FLUSH_SECONDS)

    def _wake(self) -> None:
        with self._sending, contextlib.suppress(BlockingIOError):  # full: it is awake already
            if self._wake_writer is not None:
                os.write(self._wake_writer, b"!")

    # The thread

    def _run(self) -> None:
        try:
            reason = self._converse()
            self._part()
        except (OSError, WireError) as error:
            reason = f"{error}"
        except Exception as error:  # whatever it is, whoever waits for this thread must not wait for ever
            reason = f"its client failed: {error!r}"
        finally:
            self._release()
        if not self._closing and self.ended is None:
            self._lose(reason)

    def _release(self) -> None:
        _open_clients.discard(self)
        with self._sending:
            self._unsent.clear()
            self._connection.close()
            os.close(self._wake_reader)
            if self._wake_writer is not None:
                os.close(self._wake_writer)
            self._wake_writer = None
            self._sending.notify_all()

    def _converse(self) -> str:
        """Read, write and send heartbeats until closed from this side or the other; says why it ended."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        next_beat = time.monotonic()
        while not self._closing:
            while (message := self._buffer.take()) is not None:
                self._take_in(message)
            if (now := time.monotonic()) >= next_beat:
                self._beat()
                next_beat = now + self._interval
            with self._sending:
                wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
                if len(self._unsent) > MAX_UNSENT:
                    return f"it has not read {len(self._unsent)} bytes"
            poll.register(self._connection, wanted)
            ready = dict(poll.poll(max(0.0, next_beat - now) * 1000))
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if ready.get(self._connection.fileno(), 0) & select.POLLOUT:
                with self._sending:
                    self._push()
            if ready.get(self._connection.fileno(), 0) & ~select.POLLOUT:
                data = self._connection.recv(65536)
                if not data:
                    return "it closed the connection"
                self._buffer.feed(data)
        return ""

    def _part(self) -> None:
        """Close in good order: closing on unread bytes would reset the connection, and our last words with it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(FLUSH_SECONDS)
            while self._connection.recv(65536):
                pass

    def _beat(self) -> None:
        step, operation = self._position
        generation = 0 if self._generation is None else self._generation.number
        self._send(Heartbeat(generation=generation, step=step, operation=operation))

    def _take_in(self, message: CoordinatorMessage) -> None:
        interrupted: str | None = None
        formed: int | None = None
        with self._news:
            if isinstance(message, Formed):
                if self._generation is not None:
                    interrupted, formed = message.generation.reason, message.generation.number
                self._generation = message.generation
            elif isinstance(message, StopNotice):
                self.stop_reason = message.reason
            elif isinstance(message, CheckpointSettled):
                self._settled[message.checkpoint] = message.published
                if len(self._settled) > SETTLED_KEPT:
                    del self._settled[next(iter(self._settled))]
            elif isinstance(message, Ended):
                self.ended = message
                interrupted = message.text
            elif isinstance(message, Turned):
                raise WireError(f"it turned this worker away: {message.reason}")
            self._news.notify_all()
        self._interrupt(interrupted, formed)

    def _lose(self, reason: str) -> None:
        with self._news:
            self._lost = f"the coordinator at {self._address} is gone: {reason}"
            self._news.notify_all()
        self._interrupt(self._lost)

    def _interrupt(self, reason: str | None, formed: int | None = None) -> None:
        if reason is not None and self.on_interrupt is not None:
            self.on_interrupt(reason, formed)

    def close_in_child(self) -> None:
        """After a fork: the child's copy of the socket must not keep the connection open when this worker dies."""
        self._connection.close()


_open_clients: weakref.WeakSet[CoordinatorClient] = weakref.WeakSet()


def _close_in_child() -> None:
    for client in tuple(_open_clients):
        client.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
