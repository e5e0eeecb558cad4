"""A simulated server group: servers, and the live keeper that decides which of them are in the map.

The launcher's part is here too: lost servers are replaced. Deaths come no closer together than replicas can bear,
except in `kill_all`, after which there is nothing left to go on from. Not here: a server's own part
(`server_process`), the workers (`served_worker`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from shoal.parameters.connections.purposes import KEEPER_PURPOSE
from shoal.parameters.keeper.group_events import GroupEvent, GroupServerLost, MapMade
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
from shoal.parameters.keeper.server_group import GroupSettings, ServerGroup
from shoal.plan.members.invariants import Violation
from shoal.plan.served.mail import Mail
from shoal.plan.served.server_process import ServerProcess
from shoal.plan.world.virtual_time import Process
from shoal.values import Address, Server, ServerMap
from shoal.wire.keeper_messages import GroupNews, ServerJoin, WatchGroup
from shoal.wire.ledger_entries import AnyEntry
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import AnyNote

TICK = 0.25  # seconds between looks at who is silent
SILENCE_LIMIT = 1.5  # seconds
KNOWN_SECONDS = 2.0  # from the end of a cut until the keeper knows of it
MANY = 1000  # connections of one job to the keeper
SESSION = bytes(32)  # nothing is sealed here
STALENESS = "clocks bound staleness"


class SimulatedGroup:
    def __init__(self, mail: Mail, servers: int, replicas: int) -> None:
        self.mail = mail
        self.time = mail.time
        self.replicas = replicas
        self.servers: dict[int, ServerProcess] = {}
        self.histories: dict[bytes, dict[int, AnyEntry]] = {}
        self.events: list[tuple[float, GroupEvent]] = []
        self.was_killed = False  # all servers died at once: the ledger may be lost
        self.replaces = True  # lost servers are replaced
        self._keeper = Process(self.time)
        self._group = ServerGroup(GroupSettings(servers, replicas))
        self._core = KeeperCore(self._group, SILENCE_LIMIT, MANY)
        self._watchers: dict[int, tuple[Process, Callable[[ServerMap], None]]] = {}  # by client
        self._clients = itertools.count(MANY)  # clients of servers have the servers' numbers
        self._allowance = 0  # deaths that are allowed before the next settled state
        self._parted_until = 0.0  # until then the keeper may put out a server that is cut off from another one
        mail.on_connected = self._connected
        for _ in range(servers):
            self.add()
        self._keeper.after(TICK, self._look)

    @property
    def map(self) -> ServerMap | None:
        return self._group.map

    @property
    def members(self) -> list[ServerProcess]:
        return [self.servers[each.number] for each in self.map.servers] if self.map is not None else []

    @property
    def is_settled(self) -> bool:
        """Blocks are where they should be, and all servers have what the ledger had when the present view began.

        None of them is about to be put out either.
        """
        if self.map is None or not self.map.is_settled or self.time.now < self._parted_until:
            return False
        return all(
            self._runs(server) and server.view == self.map.version and server.has_begun for server in self.members
        )

    @property
    def is_calm(self) -> bool:
        """Whether the group is settled and every server has every entry of the ledger."""
        return self.is_settled and len({server.sequencer.number for server in self.members}) == 1

    def watch(self, process: Process, hear: Callable[[ServerMap], None]) -> None:
        """The process hears of every map from now on."""
        client = next(self._clients)
        self._watchers[client] = (process, hear)
        self._do(self._core.heard(_caller(client), WatchGroup(version=PARAMETER_VERSION), self.time.now))

    # Faults

    def add(self) -> None:
        """Start one more server."""
        number = len(self.servers)
        named = Server(number, Address("host", 1), "host", number)
        self.servers[number] = server = ServerProcess(self, named)
        join = ServerJoin(
            version=PARAMETER_VERSION, number=number, address=named.address, host=named.host, process=number
        )
        self.tell_keeper(server, join)

    def strike(self, *, kill: bool, tries: int = 20) -> None:
        """Kill one server, or stop it for a while; later if that would lose what a worker was told."""
        if self.is_settled:
            self._allowance = min(max(self.replicas - 1, 1), len(self.members) - 1)
        running = [server for server in self.members if self._runs(server)]
        if self._allowance == 0 or len(running) < 2:
            if tries:
                self.time.after(0.3, lambda: self.strike(kill=kill, tries=tries - 1))
            return
        self._allowance -= 1
        # Prefer the home of the ledger, where a loss matters most.
        victim = running[0] if self.time.chance(0.5) else self.time.random.choice(running)
        if kill:
            self._kill(victim)
        else:
            victim.freeze(self.time.between(0.5, 6.0))  # the keeper may give it up meanwhile

    def kill_all(self) -> None:
        self.was_killed = True
        for server in self.members:
            self._kill(server)

    def cut(self) -> None:
        """Break a connection between two servers: for a moment, or sometimes until the keeper puts one of them out."""
        running = [server for server in self.members if self._runs(server)]
        if len(running) < 2:
            return
        is_long = self.time.chance(0.2) and self._may_lose_one()
        seconds = self.time.between(6.0, 9.0) if is_long else self.time.between(0.01, 0.3)
        if is_long:
            self._parted_until = self.time.now + seconds + KNOWN_SECONDS
        one, other = self.time.random.sample(running, 2)
        self.mail.cut(one, other, seconds)

    def _may_lose_one(self) -> bool:
        if not self.is_settled or len(self.members) < 3:
            return False
        self._allowance = 0
        return True

    def _kill(self, server: ServerProcess) -> None:
        server.die()
        closed = partial(self._core.closed, server.number, "it closed the connection")
        self.time.after(self.time.between(0.001, 0.1), lambda: self._do(closed(self.time.now)))

    def _runs(self, server: ServerProcess) -> bool:
        return server.is_alive and not server.is_frozen

    # From servers

    def tell_keeper(self, server: ServerProcess, note: AnyNote) -> None:
        heard = partial(self._core.heard, _caller(server.number), note)
        self.mail.send(server, self._keeper, lambda: self._do(heard(self.time.now)))

    def check_read(self, worker: int) -> None:
        """A worker reads values. The home of the ledger knows best how far each worker is."""
        home = self.members[0]
        ledger = home.sequencer.ledger
        if not self._runs(home) or not home.sequencer.is_begun or ledger is None or ledger.staleness is None:
            return
        own = ledger.clocks.by_worker.get(worker)
        if own is not None:
            ahead = [own.count - each.count for each in ledger.clocks.by_worker.values() if each.is_at_work]
            if max(ahead, default=0) > ledger.staleness:
                raise Violation(STALENESS, f"worker {worker} read {max(ahead)} clocks ahead of the slowest")

    def _connected(self, here: Process, there: Process) -> None:
        if isinstance(here, ServerProcess) and isinstance(there, ServerProcess):
            here.connected(there.number)

    # The keeper

    def _look(self) -> None:
        self._do(self._core.look(self.time.now, late=0.0))
        self._keeper.after(TICK, self._look)

    def _do(self, instructions: list[KeeperInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Admit():
                    pass
                case SendNews(client, map_):
                    server = self.servers[client]
                    self.mail.send(self._keeper, server, partial(server.hear_map, map_))
                case SendNote(client, note):
                    self._tell_watcher(client, note)
                case Refuse(client):
                    self.mail.send(self._keeper, self.servers[client], self.servers[client].die)
                case KeeperEvent(event):
                    self.events.append((self.time.now, event))
                    self._follow(event)

    def _tell_watcher(self, client: int, note: AnyNote) -> None:
        process, hear = self._watchers[client]
        if isinstance(note, GroupNews) and note.map is not None:
            self.mail.send(self._keeper, process, partial(hear, note.map))

    def _follow(self, event: GroupEvent) -> None:
        if isinstance(event, MapMade):
            for one, other in itertools.combinations([self.servers[each.number] for each in event.map.servers], 2):
                if not self.mail.was_made(one, other):
                    self.time.after(self.mail.delay(), partial(self.mail.connect, one, other))
        elif isinstance(event, GroupServerLost):
            is_needed = len(self.members) <= max(self.replicas, 2)
            if self.replaces and (is_needed or self.time.chance(0.7)):
                self.time.after(self.time.between(0.0, 1.0), self.add)


def _caller(client: int) -> Caller:
    return Caller(client, KEEPER_PURPOSE, SESSION)
