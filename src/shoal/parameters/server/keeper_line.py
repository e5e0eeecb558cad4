"""A server's connection to the keeper of its group: the server joins, hears of every new map, and reports its state.

Not here: what a new map means (`server`), and the keeper's own end (`keeper`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import Refused
from shoal.parameters.connections.connection import Connection, Hearer
from shoal.parameters.connections.purposes import KEEPER_PURPOSE
from shoal.parameters.connections.switchboard import Switchboard
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.name_lookup import NameLookup
from shoal.values import Address
from shoal.wire.keeper_messages import ServerBeat, ServerJoin
from shoal.wire.note import PARAMETER_VERSION, Note

BEAT_SECONDS = 0.5
RETRY_SECONDS = 0.1
LOST_SECONDS = 10.0  # after so long without a keeper a server ends: nobody could tell it that it has been removed


@dataclass(frozen=True)
class KeeperAt:
    """Where the keeper is, and who this server is."""

    address: Address
    token: str = field(repr=False)  # of the group
    number: int  # of this server


class KeeperLine:
    """Driven by `tend`, which the server calls in every turn."""

    def __init__(self, at: KeeperAt, mine: Address, hearer: Hearer, beat: Callable[[], ServerBeat]) -> None:
        self.connection: Connection | None = None
        self._at = at
        self._mine = mine
        self._hearer = hearer
        self._beat = beat
        self._next_beat = 0.0  # by time.monotonic, like the next two
        self._next_try = 0.0
        self._lost_since: float | None = None
        self._trouble = ""
        self._names = NameLookup()

    def send(self, note: Note) -> None:
        """Dropped without a connection: the keeper has counted this server as lost then."""
        if self.connection is not None:
            self.connection.send(note)

    def tend(self, board: Switchboard) -> float:
        """Do what is due; returns seconds until something is due again. `Refused`: no keeper for `LOST_SECONDS`."""
        now = time.monotonic()
        if self.connection is None:
            if self._lost_since is not None and now - self._lost_since > LOST_SECONDS:
                raise Refused(f"no keeper at {self._at.address} for {LOST_SECONDS:g} s ({self._trouble}): giving up")
            if now >= self._next_try:
                self._connect(board, now)
        self.beat_if_due()
        due = self._next_beat if self.connection is not None else self._next_try
        return max(0.0, due - now)

    def beat_if_due(self) -> None:
        """If a beat is due, send it without delay."""
        now = time.monotonic()
        if self.connection is not None and now >= self._next_beat:
            self._next_beat = now + BEAT_SECONDS
            self.connection.send(self._beat())
            self.connection.flush()

    def lost(self, reason: str) -> None:
        """The connection to the keeper is closed. `Refused`: the keeper has refused this server."""
        connection, self.connection = self.connection, None
        if connection is not None and connection.was_refused:
            raise Refused(f"the keeper at {self._at.address} refused server {self._at.number}: {reason}")
        self._trouble = reason
        self._next_try = time.monotonic() + RETRY_SECONDS
        if self._lost_since is None:
            self._lost_since = time.monotonic()

    def found(self) -> None:
        """The keeper has answered."""
        self._lost_since = None

    def _connect(self, board: Switchboard, now: float) -> None:
        try:
            if (place := self._names.find(self._at.address)) is None:
                self._next_try = now + RETRY_SECONDS
                return
            connection = Connection.connecting(place, Key(KEEPER_PURPOSE, self._at.token), self._hearer)
        except OSError as error:
            self.lost(error.strerror or str(error))
            return
        if self._lost_since is None:
            self._lost_since = now
        connection.send(
            ServerJoin(
                version=PARAMETER_VERSION,
                number=self._at.number,
                address=self._mine,
                host=socket.gethostname(),
                process=os.getpid(),
            )
        )
        self.connection = connection
        self._next_beat = now + BEAT_SECONDS
        board.add(connection)
