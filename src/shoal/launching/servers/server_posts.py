"""The posts of a group's parameter servers on this machine: who has one, and when the next process is started. Pure.

A server that ends without having been asked to is replaced under the next number, which is never given again. Servers
that end before they have joined the group are waited for longer and longer, and given up after a few in a row; one blow
that hits several of them counts once. The caller says what time it is. Not here: what a loss means for the parameters,
which is the keeper's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shoal.launching import texts

PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before the next try, by how many in a row never joined
MOST_FRUITLESS = 5  # in a row that never joined, after which no more are started
MOST_LOSSES = 50  # within
LOSSES_WITHIN = 60.0  # seconds, after which no more are started
START_SECONDS = 180.0  # after which nobody counts on a started server that has not joined


@dataclass(frozen=True)
class Opening:
    """A server is to be started."""

    server: int
    reason: str  # empty for the first ones


@dataclass(frozen=True)
class _Vacancy:
    due: float
    reason: str


class ServerPosts:
    def __init__(self, count: int) -> None:
        self._count = count  # that the group began with
        self._next = 0
        self._vacancies = [_Vacancy(0.0, "")] * count
        self._running: set[int] = set()
        self._starting: dict[int, float] = {}  # those of them that have never joined, and when they were started
        self._joined: set[int] = set()  # of those
        self._ever_joined = 0
        self._leaving: set[int] = set()  # asked to go
        # Rounds in a row of servers that never joined. Those that ran already when the last round was counted belong to
        # it: one blow may hit them all.
        self._fruitless = 0
        self._counted = -1  # number of the newest server when a round was last counted
        self._losses: deque[float] = deque(maxlen=MOST_LOSSES)
        self.given_up = ""  # why no more are started

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(sorted(self._running))

    @property
    def serving(self) -> tuple[int, ...]:
        """Those of the running ones that have joined the group."""
        return tuple(sorted(self._joined))

    @property
    def is_hopeless(self) -> bool:
        """Whether nobody can be served any more: the group never got complete, or nobody of it is left."""
        return bool(self.given_up) and (self._ever_joined < self._count or not self._joined)

    @property
    def next_due(self) -> float | None:
        """When `take_due` has something to say next."""
        return None if self.given_up else min((vacancy.due for vacancy in self._vacancies), default=None)

    def coming(self, now: float) -> int:
        """How many servers will probably join: those that are about to be started, or were started recently."""
        fresh = sum(now - since < START_SECONDS for since in self._starting.values())
        return fresh + (0 if self.given_up else len(self._vacancies))

    def take_due(self, now: float) -> list[Opening]:
        """Who is to be started now; each counts as running from here on."""
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
        """Somebody asks for more servers than there are."""
        self._vacancies += [_Vacancy(now, "more servers were asked for")] * count
        self.given_up = ""

    def leaving(self, server: int) -> None:
        """It was asked to go and is not to be replaced."""
        self._leaving.add(server)

    def exited(self, server: int, how: str, now: float) -> bool:
        """False for one that was asked to go."""
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
