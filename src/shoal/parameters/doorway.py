"""A listening socket of a server group and the strangers on it: whoever connects has little time to prove who it is.

Not here: the proof itself (`proving`), and what is said afterwards.
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
from shoal.values import Address

MAX_STRANGERS = 256  # connections that have said nothing of use yet; beyond, the one that has been there longest goes
STRANGER_SECONDS = 10.0  # for the proof and the first note together
BACKLOG = 512


class Doorway:
    """Accepts connections; each is a stranger until `settled` says that it is not."""

    def __init__(self, listen: Address, keys: Callable[[], Iterable[Key]], hearer: Hearer) -> None:
        self._socket = _listen(listen)
        host = socket.gethostname() if _is_wildcard(listen.host) else listen.host
        self.address = Address(host, self._socket.getsockname()[1])  # for others to connect to
        self._keys = keys
        self._hearer = hearer
        self._strangers: dict[Connection, float] = {}  # by time.monotonic at which it came, oldest first

    def open(self, board: Switchboard) -> None:
        self._board = board
        board.watch(self._socket, self._accept)

    def settled(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)

    def sweep(self) -> None:
        """Close strangers whose time is up; to be called now and then."""
        limit = time.monotonic() - STRANGER_SECONDS
        for connection in [each for each, came in self._strangers.items() if came < limit or each.is_closed]:
            self.settled(connection)
            connection.close()

    def close(self) -> None:
        self._board.unwatch(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        try:
            endpoint, _ = self._socket.accept()
        except OSError:
            self._drop_oldest()  # it is gone again, or this process has no descriptor left: one stranger makes room
            return
        try:
            connection = Connection.accepted(endpoint, self._keys, self._hearer)
        except OSError:
            endpoint.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._drop_oldest()
        self._strangers[connection] = time.monotonic()
        self._board.add(connection)

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self.settled(oldest)
            oldest.close()


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
        raise AddressUnavailable(f"cannot listen on {address}: {error.strerror}; check the address") from None
    listener.setblocking(False)
    return listener
