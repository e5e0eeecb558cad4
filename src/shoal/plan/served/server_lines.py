"""A simulated worker's connections to the servers of the newest map, and what they say of the servers' ledger.

As in the live client, a server may be asked once it has begun a map and named its ledger; messages from a server that
has left the map are ignored; a connection that breaks is made again. The live `Lineage` decides whether the ledger is
lost. Not here: what is asked (`served_worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from shoal.parameters.client.lineage import Lineage
from shoal.plan.served.mail import Mail, SimulatedLine
from shoal.plan.served.server_process import ServerProcess
from shoal.plan.world.virtual_time import Process
from shoal.values import ServerMap

RECONNECT_SECONDS = 0.05


class LinesOwner(Protocol):
    """The worker."""

    def go_on(self) -> None:
        """Something has changed that the worker may be waiting for."""

    def lose_ledger(self) -> None:
        """The servers have another ledger than before."""


class SimulatedLines:
    def __init__(self, process: Process, owner: LinesOwner, mail: Mail, servers: dict[int, ServerProcess]) -> None:
        self.map: ServerMap | None = None  # the newest
        self.lineage = Lineage()
        self._process = process
        self._owner = owner
        self._mail = mail
        self._servers = servers
        self._lines: dict[int, SimulatedLine] = {}  # by server of the map
        self._ready: set[int] = set()  # servers that may be asked

    @property
    def newest(self) -> ServerMap:
        assert self.map is not None, "a worker begins when it knows the map"
        return self.map

    def ready(self) -> dict[int, SimulatedLine]:
        """Lines to servers that may be asked."""
        return {number: line for number, line in self._lines.items() if number in self._ready}

    def is_open(self, line: SimulatedLine | None) -> bool:
        return line in self._lines.values()

    def hear_map(self, map_: ServerMap) -> None:
        if self.map is not None and map_.version <= self.map.version:
            return
        self.map = map_
        if self.lineage.map_changed(map_):
            self._owner.lose_ledger()
        for number in [number for number in self._lines if map_.server(number) is None]:
            self._lines.pop(number).close()
            self._ready.discard(number)
        for server in map_.servers:
            if server.number not in self._lines:
                self._connect(server.number)
        self._owner.go_on()

    def break_one(self) -> None:
        """A connection breaks, and is made again."""
        if self._lines:
            number = self._process.time.random.choice(sorted(self._lines))
            line = self._lines[number]
            line.break_off()
            self._ready.discard(number)
            self._process.after(RECONNECT_SECONDS, lambda: self._connect(number) if self.is_open(line) else None)

    def _connect(self, number: int) -> None:
        line = self._lines[number] = SimulatedLine(self._mail, self._process, self._servers[number])
        tell: Callable[[int], None] = partial(self._tell_origin, number, line)
        line.to_server(partial(self._servers[number].define, tell))

    def _tell_origin(self, number: int, line: SimulatedLine, origin: int) -> None:
        line.to_worker(partial(self._hear_origin, number, origin))

    def _hear_origin(self, number: int, origin: int) -> None:
        self._ready.add(number)
        if self.lineage.heard_origin(origin):
            self._owner.lose_ledger()
        self._owner.go_on()
