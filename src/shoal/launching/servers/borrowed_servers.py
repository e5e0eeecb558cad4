"""A job's name space in a group of parameter servers that somebody else runs, and news of that group.

The group is asked for its figures once a second, in a thread, because it may be slow to answer. Not here: the servers.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field

from shoal.errors import Refused, ShoalError
from shoal.launching import texts
from shoal.launching.servers import server_news
from shoal.launching.servers.server_side import MEASURED_EVERY, Rhythm, Seen, ServerSide
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Address, ServerMap
from shoal.wire.keeper_messages import GroupStatus

PATIENCE = 5.0  # seconds for the keeper to answer


@dataclass(frozen=True)
class BorrowedServersConfig:
    keeper: Address
    token: str = field(repr=False)  # the group's
    space: SpaceTerms  # the job's own, with its own key


class BorrowedServers(ServerSide):
    def __init__(self, config: BorrowedServersConfig) -> None:
        """Opens the space. AddressUnavailable if nobody listens, Refused with the keeper's reason."""
        self._config = config
        self._answers: queue.SimpleQueue[GroupStatus | ShoalError] = queue.SimpleQueue()
        self._over = threading.Event()
        self._map: ServerMap | None = None
        self._seen_at = time.monotonic()
        self._is_silent = False
        self._rhythm = Rhythm()
        self._is_closed = False
        with self._client() as client:
            with contextlib.suppress(Refused):  # usually there is none
                client.close_space(config.space.job)  # left by this run directory's last launcher, if it was killed
            client.open_space(config.space)
        self._asking = threading.Thread(target=self._ask, name="shoal-servers", daemon=True)
        self._asking.start()

    @property
    def next_due(self) -> float | None:
        return self._rhythm.next_due

    def look(self, now: float) -> Seen:
        seen = Seen()
        self._rhythm.is_due(now)
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._answers.get_nowait(), seen, now)
        return seen

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._over.set()
        self._asking.join()
        with contextlib.suppress(ShoalError), self._client() as client:  # a group that is gone holds nothing
            client.close_space(self._config.space.job)

    def _take(self, answer: GroupStatus | ShoalError, seen: Seen, now: float) -> None:
        if isinstance(answer, ShoalError):
            if not self._is_silent:
                seen.lines.append(texts.group_silent(self._config.keeper, answer))
            self._is_silent = True
            return
        self._is_silent = False
        seen.events += server_news.differences(self._map, answer.map, max(0.0, now - self._seen_at))
        self._map, self._seen_at = answer.map or self._map, now
        self._rhythm.sort(server_news.measured(answer, self._config.space.job), seen, now)

    def _ask(self) -> None:
        while not self._over.wait(MEASURED_EVERY):
            try:
                with self._client() as client:
                    while not self._over.is_set():
                        self._answers.put(client.status())
                        self._over.wait(MEASURED_EVERY)
            except ShoalError as error:
                self._answers.put(error)

    def _client(self) -> KeeperClient:
        return KeeperClient(self._config.keeper, self._config.token, PATIENCE)
