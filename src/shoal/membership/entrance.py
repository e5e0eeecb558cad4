"""The coordinator's listening socket: takes connections in, a few at a time, and waits where no descriptor is left.

Done here and not by asyncio's own server, which takes in a hundred at once, before any of them can be closed, and stops
for a second when there is no descriptor. Not here: what is said on a connection, and which strangers have to go
(`connections`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from shoal.membership.connections import Connection, Connections
from shoal.transport.strangers import ACCEPT_AT_ONCE, FULL_SECONDS


class Entrance:
    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        """`listener` is bound and listening, and belongs to the entrance from now on."""
        self._listener = listener
        self._connections = connections
        self._coming: set[asyncio.Task[None]] = set()  # accepted, and not known to `connections` yet

    def open(self) -> None:
        """In a running loop."""
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Nobody is let in any more. Safe to call twice."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        while len(self._coming) < ACCEPT_AT_ONCE:
            try:
                endpoint, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError:
                self._connections.make_room()
                self._loop.remove_reader(self._listener)
                self._loop.call_later(FULL_SECONDS, self._resume)
                return
            task = self._loop.create_task(_take_in(self._connections.accept, endpoint))
            self._coming.add(task)
            task.add_done_callback(self._came)
        self._loop.remove_reader(self._listener)

    def _came(self, task: asyncio.Task[None]) -> None:
        is_waiting = len(self._coming) >= ACCEPT_AT_ONCE
        self._coming.discard(task)
        if is_waiting:
            self._resume()


async def _take_in(make: Callable[[], Connection], endpoint: socket.socket) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(make, endpoint)
    except OSError:  # it is gone again
        endpoint.close()
