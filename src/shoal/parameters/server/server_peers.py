"""A server's connections to the other servers of its map: of any two, the one with the higher number connects.

A message to a server that is not connected is dropped; the sender is told of every new connection (`on_connected`) and
then repeats what still matters. Not here: what servers say to each other (`space`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.parameters.connections.connection import Connection, Hearer
from shoal.parameters.connections.purposes import SERVER_PURPOSE
from shoal.parameters.connections.switchboard import Switchboard
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.name_lookup import NameLookup
from shoal.values import Server, ServerMap
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.parameter_messages import ServerHello, ServerWelcome

RETRY_SECONDS = 0.05
UNREACHED_SECONDS = 15.0  # without a connection before the keeper is told; a busy machine may need several seconds


class ServerPeer:
    """Another server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.server: Server | None = None  # None: it has connected, but no map that is known here names it yet
        self.connection: Connection | None = None
        self.is_ready = False  # both ends have said who they are
        self.next_try = 0.0  # by time.monotonic, like `absent_since`
        self.absent_since = time.monotonic()  # while it is not ready


class ServerPeers:
    def __init__(self, number: int, token: str, hearer: Hearer, on_connected: Callable[[int], None]) -> None:
        self._number = number
        self._token = token
        self._hearer = hearer
        self._on_connected = on_connected
        self._peers: dict[int, ServerPeer] = {}
        self._names = NameLookup()

    def adopt(self, servers: ServerMap) -> None:
        """Use a new map: close connections to servers that have left it."""
        living = {server.number: server for server in servers.servers if server.number != self._number}
        for number in [number for number, peer in self._peers.items() if peer.server and number not in living]:
            peer = self._peers.pop(number)
            if peer.connection is not None:
                peer.connection.close()
        for number, server in living.items():
            peer = self._peers.setdefault(number, ServerPeer(number))
            peer.server = server

    def send(self, number: int, note: Note, payload: memoryview | bytes | None = None) -> None:
        peer = self._peers.get(number)
        if peer is not None and peer.is_ready and peer.connection is not None:
            peer.connection.send(note, payload)

    def unreached(self) -> tuple[int, ...]:
        """Servers of the map without a connection for `UNREACHED_SECONDS`."""
        long_ago = time.monotonic() - UNREACHED_SECONDS
        absent = (peer for peer in self._peers.values() if peer.server is not None and not peer.is_ready)
        return tuple(peer.number for peer in absent if peer.absent_since < long_ago)

    def tend(self, board: Switchboard) -> float | None:
        """Make the connections that are due. Returns seconds until the next is due; None: none will be."""
        now = time.monotonic()
        absent = [
            peer
            for peer in self._peers.values()
            if peer.server is not None and peer.connection is None and peer.number < self._number
        ]
        for peer in absent:
            if now >= peer.next_try:
                self._connect(peer, board)
        return min((max(0.0, peer.next_try - now) for peer in absent if peer.connection is None), default=None)

    def came(self, connection: Connection, hello: ServerHello) -> None:
        """Another server has connected and said who it is. Its newest connection replaces an older one."""
        peer = self._peers.setdefault(hello.server, ServerPeer(hello.server))
        if peer.connection is not None:
            peer.connection.close()
        connection.label = peer
        peer.connection, peer.is_ready = connection, True
        connection.send(ServerWelcome(server=self._number, view=0))
        self._on_connected(peer.number)

    def welcomed(self, peer: ServerPeer) -> None:
        """The server that this one connected to has answered."""
        peer.is_ready = True
        self._on_connected(peer.number)

    def lost(self, peer: ServerPeer, connection: Connection) -> None:
        if peer.connection is connection:
            if peer.is_ready:
                peer.absent_since = time.monotonic()
            peer.connection, peer.is_ready = None, False
            peer.next_try = time.monotonic() + RETRY_SECONDS
            if peer.server is None:
                self._peers.pop(peer.number, None)

    def _connect(self, peer: ServerPeer, board: Switchboard) -> None:
        assert peer.server is not None, "only servers of the map are connected to"
        try:
            if (place := self._names.find(peer.server.address)) is None:
                peer.next_try = time.monotonic() + RETRY_SECONDS
                return
            connection = Connection.connecting(place, Key(SERVER_PURPOSE, self._token), self._hearer)
        except OSError:
            peer.next_try = time.monotonic() + RETRY_SECONDS
            return
        connection.label = peer
        peer.connection = connection
        connection.send(ServerHello(version=PARAMETER_VERSION, server=self._number))
        board.add(connection)
