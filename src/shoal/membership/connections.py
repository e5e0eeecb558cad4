"""The coordinator's end of connections: messages in and out, limits on strangers and on slow readers.

Handles bytes as they come, in asyncio's event loop and without a task per connection: thousands of members send a
heartbeat each second. Not here: what messages mean (`core`), the client's end (`channel`), the handshake and encryption
(`transport.connection`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import WireError
from shoal.membership.channel import PURPOSE
from shoal.transport.connection import silence
from shoal.transport.connection.door import Door
from shoal.transport.connection.handshake import ListenerHandshake
from shoal.transport.connection.introduction import Introduction
from shoal.transport.connection.sending import SendQueue
from shoal.wire.message_frames import MessageBuffer
from shoal.wire.messages import MAX_MESSAGE_BYTES, ClientMessage, decode_client

MAX_UNREAD = 8 * 1024 * 1024  # bytes waiting for a client that does not read
READ_BYTES = 256 * 1024  # read from one client before the others have their turn
SEND_BYTES = 1024 * 1024  # handed to the kernel at once
GOODBYE_SECONDS = 1.0  # at the end, for sending the last messages
LINGER_SECONDS = 0.2  # after that, for clients to close from their side


@dataclass(frozen=True)
class Hearers:
    """Callbacks for what happens on a connection. Clients are numbered in the order of their first messages."""

    arrived: Callable[[int, ClientMessage], None]
    closed: Callable[[int, str], None]  # gets the reason if this side closed it; not called after `Connections.close`
    intercepted: Callable[[str], None]  # gets the host of whoever decrypts connections; once for each


class Connections:
    """All connections to the coordinator."""

    def __init__(self, listener: socket.socket, token: str, hearers: Hearers) -> None:
        """`listener` is bound and listening; this object owns it from now on."""
        self.token = token
        self.hearers = hearers
        self._door: Door[ClientConnection] = Door(listener, self._take_in, ClientConnection.abort)
        self._clients: dict[int, ClientConnection] = {}
        self._open: set[ClientConnection] = set()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None  # for the next deadline of the door

    # The door

    def open(self) -> None:
        """Let clients in, in a running loop."""
        self._loop = asyncio.get_running_loop()
        self._door.prepare()
        self._attend()

    def shut(self) -> None:
        """Let nobody in any more. Safe to call twice, and before `open`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._door.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._door.fileno())
            self._door.close()

    def _attend(self) -> None:
        """Wait for the next stranger and for the door's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._door.fileno() < 0:
            return
        now = self._loop.time()
        if self._door.is_full(now):
            self._loop.remove_reader(self._door.fileno())
        else:
            self._loop.add_reader(self._door.fileno(), self._accept)
        if (due := self._door.next_due(now)) is not None:
            self._timer = self._loop.call_at(due, self._sweep)

    def _accept(self) -> None:
        self._door.accept(self._loop.time())
        self._attend()

    def _sweep(self) -> None:
        self._door.sweep(self._loop.time())
        self._attend()

    def _take_in(self, endpoint: socket.socket) -> ClientConnection:
        connection = ClientConnection(self, endpoint, self._loop)
        self._open.add(connection)
        return connection

    # From connections

    def greeted(self, connection: ClientConnection) -> int:
        """The connection's first message has come: give it a number."""
        self._door.settle(connection)
        self._count += 1
        self._clients[self._count] = connection
        return self._count

    def refused(self, met: Introduction) -> None:
        if self._door.is_news(met.interceptor):
            self.hearers.intercepted(met.interceptor)

    def lost(self, connection: ClientConnection, reason: str) -> None:
        self._open.discard(connection)
        self._door.settle(connection)
        client = connection.client
        if client is not None and self._clients.pop(client, None) is not None:
            self.hearers.closed(client, reason)

    # From the coordinator

    def send(self, client: int, data: bytes) -> None:
        """Nothing is sent to a client that is gone; one that does not read is cut off."""
        connection = self._clients.get(client)
        if connection is None or connection.is_closing:
            return
        if connection.unread > MAX_UNREAD:
            del self._clients[client]
            connection.abort()
            self.hearers.closed(client, f"it has not read {MAX_UNREAD} bytes")
            return
        connection.write(data)

    def reads_well(self, client: int) -> bool:
        """The client reads fast enough to be sent messages that it could do without."""
        connection = self._clients.get(client)
        return connection is not None and connection.unread <= MAX_UNREAD // 2

    def close(self, client: int) -> None:
        """Close the connection once everything is sent. No callback follows."""
        if (connection := self._clients.pop(client, None)) is not None:
            connection.close()

    async def say_goodbye(self) -> None:
        """Send everything and let clients close first: closing with unread bytes could destroy what we sent."""
        time = self._loop.time
        for connection in self._clients.values():
            connection.write_eof()
        deadline = time() + GOODBYE_SECONDS
        while any(connection.unread for connection in self._open) and time() < deadline:
            await asyncio.sleep(0.01)
        deadline = time() + LINGER_SECONDS
        while self._open and time() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self._open):
            connection.abort()


class ClientConnection:
    """One connection: a proof that the other side holds the token, a first message, then a client."""

    def __init__(self, connections: Connections, endpoint: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError if the connection is gone already."""
        endpoint.setblocking(False)
        silence.end_when_unacknowledged(endpoint)
        self.client: int | None = None  # its number, once its first message is there
        self.is_closing = False
        self._connections = connections
        self._loop = loop
        self._met = Introduction(endpoint, ListenerHandshake({PURPOSE: connections.token}.get))
        self._is_proved = False
        self._is_gone = False
        self._ends = False  # nothing more will be written
        self._queue: SendQueue[None] = SendQueue()
        self._buffer = MessageBuffer(decode_client, MAX_MESSAGE_BYTES)
        self._reason = ""  # why this side closed it
        self._met.open()
        loop.add_reader(self._descriptor, self._readable)

    @property
    def _descriptor(self) -> int:
        return self._met.endpoint.fileno()

    # Bytes in

    def _readable(self) -> None:
        if self.is_closing:
            return
        try:
            if self._is_proved or self._prove():
                self._take_in()
        except BlockingIOError:
            return
        except OSError:
            self.abort()
        except WireError as error:
            self._reason = str(error)
            self.close()

    def _prove(self) -> bool:
        """Whether the client has proved that it holds the token."""
        self._is_proved = self._met.advance()
        if self._is_proved:
            self._met.welcome()
        elif self._met.was_refused:
            self._connections.refused(self._met)
            self.close()
        return self._is_proved

    def _take_in(self) -> None:
        """Read what has come, up to this client's share of the time."""
        taken = 0
        while taken < READ_BYTES:
            data = self._met.endpoint.recv(READ_BYTES)
            if not data:
                self.close()  # the client will send nothing more, but may still read
                return
            taken += len(data)
            self._buffer.feed(data)
            self._read()
            if self.is_closing or not self._met.endpoint.has_more():
                return  # if the kernel has more, the event loop calls again
        self._loop.call_soon(self._readable)

    def _read(self) -> None:
        """Hand over every complete message."""
        while not self.is_closing and (message := self._buffer.take()) is not None:
            if self.client is None:
                self.client = self._connections.greeted(self)
            self._connections.hearers.arrived(self.client, message)

    # Bytes out

    @property
    def unread(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._queue.size

    def write(self, data: bytes) -> None:
        was_empty = not self._queue
        self._queue.add(data)
        if was_empty:
            self._push()

    def write_eof(self) -> None:
        """End the stream once everything is sent."""
        self._ends = True
        if not self._queue:
            self._push()

    def _push(self) -> None:
        """Send what the kernel takes now, and the rest when it takes more."""
        try:
            while self._queue:
                if not self._queue.push(self._met.endpoint, SEND_BYTES):
                    self._loop.add_writer(self._descriptor, self._push)
                    return
            self._loop.remove_writer(self._descriptor)
            if self._ends and not self.is_closing:
                self._met.endpoint.shutdown(socket.SHUT_WR)
        except OSError:
            self._queue.clear()
            self.close()
            return
        if self.is_closing:
            self._loop.call_soon(self.abort)

    # The end of the connection

    def close(self) -> None:
        """Close once everything is sent. Nothing more is read."""
        if self.is_closing:
            return
        self.is_closing = True
        self._loop.remove_reader(self._descriptor)
        if not self._queue:
            self._loop.call_soon(self.abort)

    def abort(self) -> None:
        if self._is_gone:
            return
        self._is_gone = self.is_closing = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        self._met.endpoint.close()
        self._connections.lost(self, self._reason)
