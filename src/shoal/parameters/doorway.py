"""A listening socket of a server group and the strangers on it: whoever connects has little time to prove who it is.

Used by servers and by the keeper. Not here: how many strangers there may be (`transport.strangers`), the proof itself
(`proving`), and what is said afterwards.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable

from shoal.errors import AddressUnavailable, UsageError
from shoal.parameters.connection import Connection, Hearer
from shoal.parameters.proving import Key
from shoal.parameters.switchboard import Switchboard
from shoal.transport import listening
from shoal.transport.strangers import ACCEPT_AT_ONCE, FULL_SECONDS, Strangers
from shoal.values import Address

BACKLOG = 512


class Doorway:
    """Accepts connections; each is a stranger until `settled` says that it is not."""

    def __init__(self, listen: Address, keys: Callable[[], Iterable[Key]], hearer: Hearer) -> None:
        self._socket = _listen(listen)
        host = socket.gethostname() if _is_wildcard(listen.host) else listen.host
        self.address = Address(host, self._socket.getsockname()[1])  # for others to connect to
        self._keys = keys
        self._hearer = hearer
        self._strangers: Strangers[Connection] = Strangers()
        self._full_until: float | None = None  # when to accept again, after there was no descriptor for one more
        self._board: Switchboard | None = None

    def open(self, board: Switchboard) -> None:
        self._board = board
        board.watch(self._socket, self._accept)

    def settled(self, connection: Connection) -> None:
        """It is no stranger any more, or gone."""
        self._strangers.settle(connection)

    def sweep(self) -> None:
        """Close strangers whose time is up; to be called now and then."""
        now = time.monotonic()
        for connection in self._strangers:
            if connection.is_closed:
                self.settled(connection)
        _close(self._strangers.overdue(now))
        if self._full_until is not None and now >= self._full_until:
            self._full_until = None
            assert self._board is not None
            self._board.watch(self._socket, self._accept)

    def close(self) -> None:
        """Safe to call twice, and before `open`."""
        if self._board is not None:
            self._board.unwatch(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        """Take in some of the connections that wait."""
        assert self._board is not None
        for _ in range(ACCEPT_AT_ONCE):
            try:
                endpoint, _ = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError:
                _close(self._strangers.make_room())
                self._board.unwatch(self._socket)
                self._full_until = time.monotonic() + FULL_SECONDS
                return
            try:
                connection = Connection.accepted(endpoint, self._keys, self._hearer)
            except OSError:
                endpoint.close()
                continue
            self._board.add(connection)
            _close(self._strangers.enter(connection, endpoint.fileno(), time.monotonic()))


def _close(strangers: list[Connection]) -> None:
    for stranger in strangers:
        stranger.close()


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _listen(address: Address) -> socket.socket:
    if not address.host:
        raise UsageError("no host to listen on is given; 127.0.0.1 is this machine alone")
    try:
        listener = listening.listen(address, BACKLOG)
    except OSError as error:
        raise AddressUnavailable(
            f"cannot listen on {address}: {error.strerror}; choose another address or port"
        ) from None
    listener.setblocking(False)
    return listener
