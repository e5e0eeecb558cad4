"""Relay meshes between threads: the server's part is its own relay, behind a listening socket in a thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.purposes import job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.relay.relay import Forwarded, RelayHub
from shoal.parameters.relay.relay_mesh import RelayConfig, RelayMesh
from shoal.transport.connection.handshake import Key
from shoal.values import Address, Server
from shoal.wire.parameter_messages import AnyNote, Echo, Relay, RelayJoin, ServerHello, ServerWelcome

TOKEN = "a token for relays"
JOB = "relayed"


class RelayServer:
    """What a home server does for meshes, and nothing else."""

    def __init__(self, *, is_silent: bool = False) -> None:
        """A silent one keeps connections and says no more on them, as one that is stopped."""
        self.echoes = 0  # signs of life that it was asked for
        self._is_silent = is_silent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._hub = RelayHub()
        self._board = Switchboard()
        self._board.watch(self._listener, self._accept)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._board.watch(self._wake, lambda: None)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="relay-server")
        self._thread.start()
        self.server = Server(
            number=7, address=Address("127.0.0.1", self._listener.getsockname()[1]), host="here", process=os.getpid()
        )

    def close(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            self._board.close()
            self._listener.close()
            os.close(self._wake)

    def _run(self) -> None:
        while not self._is_ending:
            self._board.turn(None)

    def _accept(self) -> None:
        endpoint, _ = self._listener.accept()
        self._board.add(Connection.accepted(endpoint, lambda: [Key(job_purpose(JOB), TOKEN)], self))

    def _deliver(self, deliveries: tuple[Forwarded, ...]) -> None:
        for delivery in deliveries:
            assert isinstance(delivery.line, Connection)
            delivery.line.send(delivery.note, delivery.payload)

    def proved(self, connection: Connection) -> None:
        pass

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        if isinstance(note, ServerHello):
            connection.label = note.worker
            connection.send(ServerWelcome(server=7, view=1))
        elif isinstance(note, RelayJoin):
            assert isinstance(connection.label, int)
            self._deliver(self._hub.join(connection, connection.label, note))
        elif isinstance(note, Echo):
            self.echoes += 1
            if not self._is_silent:
                connection.send(note)
        elif isinstance(note, Relay):
            assert payload is not None
            self._deliver(self._hub.frame(connection, note, payload))

    def closed(self, connection: Connection, reason: str) -> None:
        self._deliver(self._hub.lost(connection, reason))


@contextmanager
def relay_meshes(size: int) -> Iterator[list[RelayMesh]]:
    """Workers are numbered unlike ranks, so that the one is never taken for the other."""
    server = RelayServer()
    made: list[RelayMesh] = []
    try:
        workers = tuple(10 + rank for rank in range(size))
        config = RelayConfig(server=server.server, job=JOB, key=TOKEN, generation=3, workers=workers)
        made = [RelayMesh(config, rank) for rank in range(size)]
        yield made
    finally:
        for mesh in made:
            mesh.close()
        server.close()
