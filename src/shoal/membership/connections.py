"""The coordinator's end of connections: the handshake, messages in and out, limits on strangers and slow readers.

Works on raw bytes as they come, without a task per connection: thousands of members send a heartbeat each second. Not
here: what messages mean (`core`), and the client's end (`channel`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import WireError
from shoal.membership.channel import PURPOSE, REFUSAL, UNACKNOWLEDGED_MS
from shoal.transport import strangers
from shoal.transport.strangers import Strangers
from shoal.wire import handshake
from shoal.wire.messages import ClientMessage, body_length, decode_client

MAX_UNREAD = 8 * 1024 * 1024  # bytes waiting for a client that does not read
GOODBYE_SECONDS = 1.0  # for what clients are told at the end to get out
LINGER_SECONDS = 0.2  # after that, for clients to close from their side


@dataclass(frozen=True)
class Hearers:
    """Whom a connection tells what happens on it. Clients are numbered in the order of their first messages."""

    arrived: Callable[[int, ClientMessage], None]
    closed: Callable[[int, str], None]  # with the reason if this side closed it; not after `Connections.close`


class Connections:
    """All connections to the coordinator; a factory of asyncio protocols."""

    def __init__(self, token: str, hearers: Hearers) -> None:
        self.token = token
        self.hearers = hearers
        self._strangers: Strangers[Connection] = Strangers()  # those that have not joined yet
        self._clients: dict[int, Connection] = {}
        self._open: set[Connection] = set()
        self._count = 0

    def accept(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection, descriptor: int) -> None:
        self._open.add(connection)
        for stranger in self._strangers.enter(connection, descriptor, asyncio.get_running_loop().time()):
            stranger.abort()

    def make_room(self) -> None:
        """There was no descriptor for one more connection."""
        for stranger in self._strangers.make_room():
            stranger.abort()

    def greeted(self, connection: Connection) -> int:
        """Its first message is there: it gets a number."""
        self._strangers.settle(connection)
        self._count += 1
        self._clients[self._count] = connection
        return self._count

    def lost(self, connection: Connection, reason: str) -> None:
        self._open.discard(connection)
        self._strangers.settle(connection)
        client = connection.client
        if client is not None and self._clients.pop(client, None) is not None:
            self.hearers.closed(client, reason)

    def send(self, client: int, data: bytes) -> None:
        """To a client that does not read, or is gone, nothing is sent."""
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
        """It can be shown what it may miss."""
        connection = self._clients.get(client)
        return connection is not None and connection.unread <= MAX_UNREAD // 2

    def close(self, client: int) -> None:
        """Once what was sent to it is out. Nothing more is heard of it."""
        if (connection := self._clients.pop(client, None)) is not None:
            connection.close()

    async def say_goodbye(self) -> None:
        """Let what was sent get out and clients close first: closing on unread bytes could destroy what we sent."""
        time = asyncio.get_running_loop().time
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
        await asyncio.sleep(0)  # aborted transports close their sockets in the next round of the loop


class Connection(asyncio.Protocol):
    """One connection: a proof that the other side holds the token, a first message, then a client."""

    def __init__(self, connections: Connections) -> None:
        self.client: int | None = None  # its number, once its first message is there
        self._connections = connections
        self._nonce = handshake.new_nonce()
        self._is_proved = False
        self._is_deaf = False  # nothing more is read from it
        self._bytes = bytearray()
        self._reason = ""  # why this side closed it

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        endpoint = transport.get_extra_info("socket")
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        self._timer = asyncio.get_running_loop().call_later(strangers.SECONDS, self.abort)
        self._connections.opened(self, endpoint.fileno())
        transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._bytes += data
        try:
            if self._is_proved or self._prove():
                self._read()
        except WireError as error:
            self._reason = str(error)
            self._is_deaf = True
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._timer.cancel()
        self._connections.lost(self, self._reason)

    # Bytes in

    def _prove(self) -> bool:
        """Whether it has proved that it holds the token."""
        if len(self._bytes) < handshake.REPLY_BYTES:
            return False
        reply = bytes(self._bytes[: handshake.REPLY_BYTES])
        del self._bytes[: handshake.REPLY_BYTES]
        its_nonce, proof = reply[: handshake.NONCE_BYTES], reply[handshake.NONCE_BYTES :]
        token = self._connections.token
        self._is_proved = handshake.is_proof(handshake.connector_proof(token, self._nonce, PURPOSE), proof)
        if self._is_proved:
            self._transport.write(handshake.listener_proof(token, its_nonce, PURPOSE))
        else:
            self._transport.write(REFUSAL)
            self.close()
        return self._is_proved

    def _read(self) -> None:
        """Hand over every message that is whole."""
        start, there = 0, len(self._bytes)
        try:
            while there - start >= 4 and not self._is_deaf:
                end = start + 4 + body_length(bytes(self._bytes[start : start + 4]))
                if there < end:
                    break
                message = decode_client(bytes(self._bytes[start + 4 : end]))
                start = end
                if self.client is None:
                    self._timer.cancel()
                    self.client = self._connections.greeted(self)
                self._connections.hearers.arrived(self.client, message)
        finally:
            del self._bytes[:start]

    # Bytes out

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def unread(self) -> int:
        """Bytes that the other side has not taken."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def write_eof(self) -> None:
        if not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        self._is_deaf = True
        self._transport.close()

    def abort(self) -> None:
        self._is_deaf = True
        self._transport.abort()
