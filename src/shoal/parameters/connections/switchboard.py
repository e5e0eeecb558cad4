"""Serves all connections of one thread: sends what is queued, waits, hands over what arrived.

In one turn each connection has a slice of time, and all connections of one *party* (a job) have one together. A party
with more to say waits for the next turn and does not hold up the others. Other files can be watched too. Not here: what
a connection does with its bytes (`connection`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

from shoal.parameters.connections.connection import Connection

SLICE_SECONDS = 0.02  # of a turn, for one connection; a single note may take longer
PARTY_SECONDS = 0.1  # the same for all connections of one party


class Switchboard:
    """All connections of one thread, and what else it waits for."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        """`between` is called after each connection's turn, for work that must not wait for the other connections."""
        self._between = between
        self._late: dict[Connection, None] = {}  # connections without a turn, as the time of their party was up
        self._eager: dict[Connection, None] = {}  # connections with notes that have been read but not handed over
        self._selector = selectors.DefaultSelector()
        self._masks: dict[Connection, int] = {}  # what the selector waits for; 0: it does not know the connection
        self._touched: dict[Connection, None] = {}
        self.idle_seconds = 0.0  # spent waiting
        self._closed_in = self._closed_out = 0  # bytes of connections that are gone

    def add(self, connection: Connection) -> None:
        self._masks[connection] = 0
        connection.touched = self._touch
        connection.slice_seconds = SLICE_SECONDS
        self._touch(connection)

    def watch(self, file: socket.socket | int, call: Callable[[], None]) -> None:
        """Call `call` whenever the file is readable."""
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
        """Send what is queued, wait (None: for ever), hand over what arrived. Returns whether anything did."""
        self._settle()
        start = time.monotonic()
        ready = self._selector.select(0.0 if self._eager else timeout)
        self.idle_seconds += time.monotonic() - start
        due = dict.fromkeys(self._eager, selectors.EVENT_READ)
        for key, events in ready:
            if isinstance(key.data, Connection):
                due[key.data] = due.get(key.data, 0) | events
            else:
                key.data()
        self._hear(due)
        self._settle()
        return bool(due) or bool(ready)

    def _hear(self, due: dict[Connection, int]) -> None:
        """Give each connection that the selector reports its turn, and each party no more than its time.

        Connections without a turn last time, as the time of their party was up, come first.
        """
        spent: dict[object, float] = {}
        late, self._late = self._late, {}
        now = time.monotonic()
        for connection in (*(each for each in late if each in due), *(each for each in due if each not in late)):
            party = connection.party
            if connection.is_closed:
                continue
            if party is not None and spent.get(party, 0.0) > PARTY_SECONDS:
                self._late[connection] = None  # the selector or `_eager` lists it again in the next turn
                continue
            self._eager.pop(connection, None)  # if it is eager again, it goes to the end
            connection.ready(due[connection])
            self._touch(connection)
            self._between()
            started, now = now, time.monotonic()
            spent[party] = spent.get(party, 0.0) + now - started

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
        if connection.is_eager:
            self._eager[connection] = None
        else:
            self._eager.pop(connection, None)
        mask = 0 if connection.is_closed else connection.mask
        if mask != known:
            if not mask:
                self._selector.unregister(connection.endpoint)
            elif known:
                self._selector.modify(connection.endpoint, mask, connection)
            else:
                self._selector.register(connection.endpoint, mask, connection)
            self._masks[connection] = mask
        if connection.is_closed:
            del self._masks[connection]
            self._closed_in += connection.bytes_in
            self._closed_out += connection.bytes_out
            connection.endpoint.close()
