"""The keeper's connections: passes their messages to the keeper's core, and carries out its instructions.

Runs in the keeper's thread alone; `status` is replaced whole, so that other threads may read it. Not here: the thread
and the listening socket (`keeper`), decisions (`keeper_core`).
"""

from __future__ import annotations

import itertools
import resource
import time
from collections import deque
from collections.abc import Callable

from shoal.errors import WireError
from shoal.parameters.connections import trouble_log
from shoal.parameters.connections.connection import Connection
from shoal.parameters.keeper.group_events import GroupEvent
from shoal.parameters.keeper.keeper_core import (
    Admit,
    Caller,
    KeeperCore,
    KeeperEvent,
    KeeperInstruction,
    Refuse,
    SendNews,
    SendNote,
)
from shoal.parameters.keeper.server_group import ServerGroup
from shoal.wire.keeper_messages import GroupNews
from shoal.wire.note_frames import MAX_BODY_BYTES
from shoal.wire.parameter_messages import AnyNote, Refusal

WATCHERS_SHARE, FEWEST_WATCHERS = 4, 32  # a job may have a quarter of all files that may be open, or 32


class KeeperDesk:
    """Hears all connections of the keeper (`connection.Hearer`)."""

    def __init__(self, group: ServerGroup, on_event: Callable[[GroupEvent], None], silence_limit: float) -> None:
        most_watchers = max(FEWEST_WATCHERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // WATCHERS_SHARE)
        self._core = KeeperCore(group, silence_limit, most_watchers)
        self.status = self._core.status
        self.settled: Callable[[Connection], None] = lambda _: None  # called when a connection is no stranger any more
        self._on_event = on_event
        self._clients: dict[Connection, int] = {}  # connections that have said something
        self._connections: dict[int, Connection] = {}
        self._count = itertools.count(1)
        self._instructions: deque[KeeperInstruction] = deque()  # still to be carried out
        self._is_busy = False  # carrying instructions out

    # From the keeper

    def look(self, now: float, late: float) -> None:
        """Time has passed; for `late` seconds of it the keeper itself could not hear anybody."""
        if instructions := self._core.look(now, late):
            self._do(instructions)

    def lose(self, number: int, reason: str, now: float) -> None:
        """Count this server as lost, even if its connection is open."""
        self._do(self._core.lose(number, reason, now))

    def announce(self, coming: int) -> None:
        """`coming` servers are being started."""
        self._do(self._core.announce(coming))

    # From connections

    def proved(self, connection: Connection) -> None:
        pass

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        reason = f"{type(note).__name__} with {size} raw bytes: the keeper takes none"
        self._do(self._core.refused(self._client(connection), reason, time.monotonic()))
        return None

    def closed(self, connection: Connection, reason: str) -> None:
        client = self._clients.get(connection)
        if client is not None:
            self._do(self._core.closed(client, reason, time.monotonic()))
        self._forget(connection)

    def arrived(self, connection: Connection, note: AnyNote, _payload: memoryview | None) -> None:
        client = self._client(connection)
        try:
            caller = Caller(client, connection.purpose, connection.session)
            self._do(self._core.heard(caller, note, time.monotonic()))
        except WireError:
            raise  # the connection tells its peer the reason, and closes
        except Exception:  # our own fault: close the client that caused it, and keep the group
            trouble_log.write_exception()
            if not self._core.is_server(client):
                reason = f"the keeper could not make sense of {type(note).__name__}"
                self._do(self._core.refused(client, reason, time.monotonic()))

    def _client(self, connection: Connection) -> int:
        if connection not in self._clients:
            self._clients[connection] = client = next(self._count)
            self._connections[client] = connection
        return self._clients[connection]

    def _forget(self, connection: Connection) -> None:
        self.settled(connection)
        client = self._clients.pop(connection, None)
        if client is not None:
            del self._connections[client]

    # Instructions

    def _do(self, instructions: list[KeeperInstruction]) -> None:
        self.status = self._core.status
        self._instructions += instructions
        if self._is_busy:
            return  # a send below closed a connection; the loop that made it carries these out too
        self._is_busy = True
        try:
            while self._instructions:
                self._do_next(self._instructions.popleft())
        finally:
            self._is_busy = False

    def _do_next(self, instruction: KeeperInstruction) -> None:
        if isinstance(instruction, KeeperEvent):
            self._on_event(instruction.event)
        elif (connection := self._connections.get(instruction.client)) is not None:
            self._do_at(connection, instruction)

    def _do_at(self, connection: Connection, instruction: Admit | SendNote | SendNews | Refuse) -> None:
        if isinstance(instruction, Admit):
            self.settled(connection)
            if instruction.is_server:
                connection.expect(MAX_BODY_BYTES)
            if instruction.job:
                connection.party = instruction.job
        elif isinstance(instruction, Refuse):
            connection.send(Refusal(kind=instruction.kind, reason=instruction.reason))
            connection.end()
            self._forget(connection)
        elif isinstance(instruction, SendNote):
            connection.send(instruction.note)
        else:
            spaces = tuple(terms.sealed(connection.session) for terms in instruction.spaces)
            connection.send(GroupNews(map=instruction.map, spaces=spaces))
