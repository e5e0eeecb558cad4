"""The keeper of a server group: a thread to which servers and workers connect, and which tells them the map.

The keeper runs in the process that started the servers. A server whose connection closes is lost at once; a silent
server is lost a little later. A peer that connects has to prove that it holds the group's token (servers,
administrators) or a job's key (workers). Until its first message it counts as a stranger, and the number of strangers
is limited. Not here: decisions (`server_group`), bytes (`connection`), the blocking client (`keeper_client`). No torch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import AddressUnavailable, UsageError
from shoal.parameters import texts
from shoal.parameters.connections.doorway import Doorway
from shoal.parameters.connections.purposes import KEEPER_PURPOSE, keeper_job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.keeper.group_events import GroupEvent, InterceptionSeen
from shoal.parameters.keeper.keeper_desk import KeeperDesk
from shoal.parameters.keeper.server_group import GroupSettings, ServerGroup
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.transport.connection.handshake import Key
from shoal.values import Address
from shoal.wire.keeper_messages import GroupStatus

TICK = 0.25  # seconds between looks for silent servers


@dataclass(frozen=True)
class KeeperConfig:
    listen: Address  # port 0: any free port
    token: str = field(repr=False)  # of the group; servers and administrators hold it
    expected: int  # servers that the first map waits for
    replicas: int = 1
    spaces: tuple[SpaceTerms, ...] = ()  # jobs that may use the group from the start
    silence_limit: float = 1.5  # seconds; servers send something twice per second


class Keeper:
    """Listens from its construction on; serves from `start` to `close`. The keeper's thread calls `on_event`."""

    def __init__(self, config: KeeperConfig, on_event: Callable[[GroupEvent], None]) -> None:
        if not config.token:
            raise UsageError(texts.NO_TOKEN)
        group = ServerGroup(GroupSettings(config.expected, config.replicas))
        for space in config.spaces:
            group.open(space)
        self._group = group
        self._token = config.token
        self._desk = KeeperDesk(group, on_event, config.silence_limit)
        self._door = _door(config.listen, self._keys, self._desk)
        self._desk.settled = self._door.settled
        self._door.on_interception = lambda source: on_event(InterceptionSeen(source, None))
        self.address = Address(config.listen.host, self._door.address.port)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._orders: deque[Callable[[float], None]] = deque()  # of other threads; called with the time
        self._is_ending = False
        self._is_closed = False
        self._board = Switchboard()
        self._thread = threading.Thread(target=self._serve, name="shoal-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all connections. Safe to call twice, and without `start`."""
        if self._is_closed:
            return
        self._is_closed = self._is_ending = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join()
        self._door.close()
        self._board.close()
        os.close(self._bell)

    def status(self) -> GroupStatus:
        """From any thread: the map, the jobs, and the figures that each server reported last."""
        return self._desk.status

    def lose(self, number: int, reason: str) -> None:
        """From any thread: count this server as lost, even if its connection is open."""
        if not self._is_closed:
            self._orders.append(lambda now: self._desk.lose(number, reason, now))
            self._ring()

    def announce(self, coming: int) -> None:
        """From any thread: `coming` servers are being started. Tells workers, so that they do not give up meanwhile."""
        if not self._is_closed:
            self._orders.append(lambda _: self._desk.announce(coming))
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    # The thread

    def _serve(self) -> None:
        self._board.watch(self._bell, self._answer_bell)
        self._door.open(self._board)
        looked = time.monotonic()
        while not self._is_ending:
            self._board.turn(TICK)
            now = time.monotonic()
            while self._orders:
                self._orders.popleft()(now)
            # Time in which this thread or the whole machine did not run does not count as silence of servers.
            self._desk.look(now, late=max(0.0, now - looked - 2 * TICK))
            looked = now
            self._door.sweep()

    def _answer_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _keys(self) -> list[Key]:
        jobs = [Key(keeper_job_purpose(space.job), space.key) for space in self._group.spaces.values()]
        return [Key(KEEPER_PURPOSE, self._token), *jobs]


def _door(listen: Address, keys: Callable[[], list[Key]], desk: KeeperDesk) -> Doorway:
    try:
        return Doorway(listen, keys, desk)
    except AddressUnavailable as error:
        raise AddressUnavailable(texts.keeper_unavailable(error)) from None
