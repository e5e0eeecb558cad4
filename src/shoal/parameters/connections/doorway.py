"""A listening socket of a server group and the strangers on it: whoever connects has little time to prove who it is.

Used by servers and by the keeper. Not here: accepting and how many strangers there may be (`transport.connection`), and
what is said afterwards.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

from shoal.errors import AddressUnavailable, UsageError
from shoal.parameters import texts
from shoal.parameters.connections.connection import Connection, Hearer
from shoal.parameters.connections.switchboard import Switchboard
from shoal.transport.connection import listening
from shoal.transport.connection.door import Door
from shoal.transport.connection.handshake import Key
from shoal.values import Address

BACKLOG = 512


class Doorway:
    """Accepts connections; each is a stranger until `settled` says that it is not."""

    def __init__(self, listen: Address, keys: Callable[[], Iterable[Key]], hearer: Hearer) -> None:
        listener = _listen(listen)
        host = socket.gethostname() if listening.is_wildcard(listen.host) else listen.host
        self.address = Address(host, listener.getsockname()[1])  # for others to connect to
        self._keys = keys
        self._hearer = hearer
        self._door: Door[Connection] = Door(listener, self._take_in, Connection.close)
        self.on_interception: Callable[[str], None] = lambda _: None  # told of hosts that decrypt, once for each
        self._is_watched = False
        self._board: Switchboard | None = None

    def open(self, board: Switchboard) -> None:
        self._board = board
        self._door.prepare()
        self._watch()

    def settled(self, connection: Connection) -> None:
        """It is no stranger any more, or gone."""
        self._door.settle(connection)

    def sweep(self) -> None:
        """Close strangers whose time is up; to be called now and then."""
        for connection in self._door:
            if connection.is_closed:
                self.settled(connection)
                if self._door.is_news(connection.interceptor):
                    self.on_interception(connection.interceptor)
        self._door.sweep(time.monotonic())
        self._watch()

    def close(self) -> None:
        """Safe to call twice, and before `open`."""
        if self._board is not None and self._is_watched:
            self._board.unwatch(self._door.fileno())
            self._is_watched = False
        self._door.close()

    def _accept(self) -> None:
        """Take in some of the connections that wait."""
        self._door.accept(time.monotonic())
        self._watch()

    def _watch(self) -> None:
        """Wait for whoever comes, unless nobody can be taken in for a moment."""
        is_wanted = self._door.fileno() >= 0 and not self._door.is_full(time.monotonic())
        if self._board is None or is_wanted == self._is_watched:
            return
        self._is_watched = is_wanted
        if is_wanted:
            self._board.watch(self._door.fileno(), self._accept)
        else:
            self._board.unwatch(self._door.fileno())

    def _take_in(self, endpoint: socket.socket) -> Connection:
        assert self._board is not None, "it is accepted for a board"
        connection = Connection.accepted(endpoint, self._keys, self._hearer)
        self._board.add(connection)
        return connection


def _listen(address: Address) -> socket.socket:
    if not address.host:
        raise UsageError(texts.NO_HOST)
    try:
        listener = listening.listen(address, BACKLOG)
    except OSError as error:
        raise AddressUnavailable(texts.cannot_listen(address, error.strerror)) from None
    return listener
