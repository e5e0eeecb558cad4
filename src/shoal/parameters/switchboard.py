"""Turns all connections of one thread: sends what is queued, waits, hands over what came.

Other files can be watched too. Not here: what a connection does with its bytes (`connection`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

from shoal.parameters.connection import Connection


class Switchboard:
    """All connections of one thread, and what else it waits for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._masks: dict[Connection, int] = {}  # what the selector waits for; 0: it does not know the connection
        self._touched: dict[Connection, None] = {}
        self.idle_seconds = 0.0  # spent waiting
        self._closed_in = self._closed_out = 0  # bytes of connections that are gone

    def add(self, connection: Connection) -> None:
        self._masks[connection] = 0
        connection.touched = self._touch
        self._touch(connection)

    def watch(self, file: socket.socket | int, call: Callable[[], None]) -> None:
        """Have `call` called whenever the file can be read."""
        self._selector.register(file, selectors.EVENT_READ, call)

    def unwatch(self, file: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    @property
    def bytes_in(self) -> int:
        return self._closed_in + sum(connection.bytes_in for connection in self._masks)

    @property
    def bytes_out(self) -> int:
        return self._closed_out + sum(connection.bytes_out for connection in self._masks)

    def turn(self, timeout: float | None) -> bool:
        """Send what is queued, wait for something to happen (None: for ever), hear it. Whether anything did."""
        self._settle()
        start = time.monotonic()
        ready = self._selector.select(timeout)
        self.idle_seconds += time.monotonic() - start
        for key, events in ready:
            if isinstance(key.data, Connection):
                if not key.data.is_closed:
                    key.data.ready(events)
                    self._touch(key.data)
            else:
                key.data()
        self._settle()
        return bool(ready)

    def close(self) -> None:
        """All connections too."""
        for connection in tuple(self._masks):
            connection.close()
        self._settle()
        self._selector.close()

    def _touch(self, connection: Connection) -> None:
        self._touched[connection] = None

    def _settle(self) -> None:
        """Flush what has something to send, and wait for what each connection needs. Hearers may send meanwhile."""
        while self._touched:
            touched, self._touched = self._touched, {}
            for connection in touched:
                if not connection.is_closed:
                    connection.flush()
                self._register(connection)

    def _register(self, connection: Connection) -> None:
        known = self._masks.get(connection)
        if known is None:
            return
        mask = 0 if connection.is_closed else connection.mask
        if mask != known:
            if not mask:
                self._selector.unregister(connection.socket)
            elif known:
                self._selector.modify(connection.socket, mask, connection)
            else:
                self._selector.register(connection.socket, mask, connection)
            self._masks[connection] = mask
        if connection.is_closed:
            del self._masks[connection]
            self._closed_in += connection.bytes_in
            self._closed_out += connection.bytes_out
            connection.socket.close()
