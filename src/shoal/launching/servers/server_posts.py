"""The posts of a group's parameter servers on this machine: which servers run, and when to start the next. Pure.

A server that ends without having been asked to is replaced under the next number; numbers are never reused. If servers
end before they have joined the group, the pauses before the next start grow, and after a few in a row no more are
started; one cause that hits several servers counts once. The caller passes the time. Not here: what a loss means for
the parameters, which the keeper decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shoal.launching import texts

PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before the next start, by how many rounds in a row never joined
MOST_FRUITLESS = 5  # rounds in a row that never joined; after these no more servers are started
MOST_LOSSES = 50  # within `LOSSES_WITHIN`; after one more no more servers are started
LOSSES_WITHIN = 60.0  # seconds
START_SECONDS = 180.0  # a server that has not joined after this time is not expected any more


@dataclass(frozen=True)
class Opening:
    """A server to start."""

    server: int
    reason: str  # empty for the first ones


@dataclass(frozen=True)
class _Vacancy:
    due: float
    reason: str


class ServerPosts:
    def __init__(self, count: int) -> None:
        self._count = count  # servers with which the group began
        self._next = 0
        self._vacancies = [_Vacancy(0.0, "")] * count
        self._running: set[int] = set()
        self._starting: dict[int, float] = {}  # running servers that have never joined: when they were started
        self._joined: set[int] = set()  # running servers that have joined the group
        self._ever_joined = 0
        self._leaving: set[int] = set()  # servers that were asked to go
        # Rounds in a row of servers that never joined. A server that already ran when the last round was counted
        # belongs to that round: one cause may hit all of them.
        self._fruitless = 0
        self._counted = -1  # number of the newest server when a round was last counted
        self._losses: deque[float] = deque(maxlen=MOST_LOSSES)
        self.given_up = ""  # why no more servers are started

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(sorted(self._running))

    @property
    def serving(self) -> tuple[int, ...]:
        """Running servers that have joined the group."""
        return tuple(sorted(self._joined))

    @property
    def is_hopeless(self) -> bool:
        """Whether the group can serve no job any more: it was never complete, or no server is left."""
        return bool(self.given_up) and (self._ever_joined < self._count or not self._joined)

    @property
    def next_due(self) -> float | None:
        """When the next server is due."""
        return None if self.given_up else min((vacancy.due for vacancy in self._vacancies), default=None)

    def coming(self, now: float) -> int:
        """How many servers will probably join: those that are about to be started, or were started recently."""
        fresh = sum(now - since < START_SECONDS for since in self._starting.values())
        return fresh + (0 if self.given_up else len(self._vacancies))

    def take_due(self, now: float) -> list[Opening]:
        """Servers to start now; each counts as running from here on."""
        due = [] if self.given_up else [vacancy for vacancy in self._vacancies if vacancy.due <= now]
        opened = []
        for vacancy in due:
            self._vacancies.remove(vacancy)
            opened.append(Opening(self._next, vacancy.reason))
            self._running.add(self._next)
            self._starting[self._next] = now
            self._next += 1
        return opened

    def joined(self, server: int) -> None:
        if server in self._running and server not in self._joined:
            self._joined.add(server)
            self._starting.pop(server, None)
            self._ever_joined += 1
            self._fruitless = 0

    def more(self, count: int, now: float) -> None:
        """An administrator asks for more servers."""
        self._vacancies += [_Vacancy(now, "more servers were asked for")] * count
        self.given_up = ""

    def leaving(self, server: int) -> None:
        """The server was asked to go: do not replace it."""
        self._leaving.add(server)

    def exited(self, server: int, how: str, now: float) -> bool:
        """False for a server that was asked to go."""
        self._running.discard(server)
        self._starting.pop(server, None)
        is_useful = server in self._joined
        self._joined.discard(server)
        if server in self._leaving:
            return False
        if is_useful:
            self._fruitless = 0
        elif server > self._counted:
            self._fruitless += 1
            self._counted = self._next - 1
        often = len(self._losses) == MOST_LOSSES and now - self._losses[0] < LOSSES_WITHIN
        self._losses.append(now)
        if self._fruitless >= MOST_FRUITLESS:
            self.given_up = texts.servers_never_join(MOST_FRUITLESS, how)
        elif often:
            self.given_up = texts.servers_lost_often(MOST_LOSSES + 1, how)
        self._vacancies.append(_Vacancy(now + PAUSES[min(self._fruitless, len(PAUSES) - 1)], f"server {server} {how}"))
        return True
