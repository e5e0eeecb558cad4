"""One proven connection between a launcher and an agent, from either end: messages in, messages out, never blocking.

Not here: what is said (`agent_messages`), how a launcher takes connections in (`agent_lines`), the handshake and
encryption (`transport.connection`).
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from shoal.engines import texts
from shoal.engines.nodes.agent_messages import MOST_BYTES, NodeMessage, encode
from shoal.transport.connection import silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.sending import SendQueue
from shoal.wire.message_frames import MessageBuffer

PURPOSE = b"agent"
READ_BYTES = 256 * 1024  # taken in at once, before others have their turn
SILENCE_SECONDS = 8.0  # after which a connection whose packets vanish counts as lost
CLOSED = "it closed the connection"

Heard = TypeVar("Heard")


class AgentLine(Generic[Heard]):
    """For one thread. `OSError` or `WireError` from any method: the connection is lost, call `close`."""

    def __init__(self, endpoint: Endpoint, decode: Callable[[bytes], Heard]) -> None:
        """`endpoint` is proven and belongs to the line from now on."""
        endpoint.setblocking(False)
        if endpoint.family in (socket.AF_INET, socket.AF_INET6):
            silence.watch(endpoint, SILENCE_SECONDS)
        self._endpoint = endpoint
        self._queue: SendQueue[None] = SendQueue()
        self._buffer = MessageBuffer(decode, MOST_BYTES)
        self._has_ended = False

    def fileno(self) -> int:
        return self._endpoint.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet: wait until the socket can be written, and call `push`."""
        return self._queue.size

    def send(self, message: NodeMessage) -> None:
        self._queue.add(encode(message))
        self.push()

    def push(self) -> None:
        while self._queue and self._queue.push(self._endpoint):
            pass

    def look_alive(self) -> None:
        """Call it about once a second: raises `TimeoutError` if the other machine has owed an answer for too long.

        A process there that is stopped does not count: its machine answers.
        """
        if silence.unanswered(self._endpoint) > SILENCE_SECONDS:
            raise TimeoutError(errno.ETIMEDOUT, texts.NO_ANSWER_FROM_MACHINE)

    def receive(self) -> list[Heard]:
        """The messages that are complete. Call it again whenever the socket can be read."""
        if self._has_ended:
            raise ConnectionResetError(errno.ECONNRESET, CLOSED)
        self._read()
        heard = []
        while (message := self._buffer.take()) is not None:
            heard.append(message)
        if self._has_ended and not heard:
            raise ConnectionResetError(errno.ECONNRESET, CLOSED)
        return heard

    def _read(self) -> None:
        """Read on beyond the limit if bytes lie here that the kernel does not know of: nobody would be woken."""
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < READ_BYTES or self._endpoint.has_more():
                data = self._endpoint.recv(READ_BYTES)
                if not data:
                    self._has_ended = True
                    return
                taken += len(data)
                self._buffer.feed(data)

    def close(self) -> None:
        """Safe to call twice."""
        self._endpoint.close()
