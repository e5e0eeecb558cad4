"""How servers agree on the norm of a gradient that lies in parts on all of them, before they clip and apply it. Pure.

Each server sends the squares of its part to home, which sends the sum to all once it has every part. If the map changes
meanwhile, every server sends its squares again, to all others: a server that has applied the update knows the sum and
answers with it. A known sum is never computed again, as it could differ in its last bit. Not here: the squares
(`shard_update`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEPT = 16  # sums kept for servers that ask again; clipped updates follow each other one by one


@dataclass(frozen=True)
class TellServers:
    """A message to other servers."""

    servers: tuple[int, ...]
    view: int  # of the server whose squares are sent or answered
    number: int  # of the update's entry
    squares: tuple[float, ...]  # by optimizer
    is_total: bool


class NormExchange:
    """One server's side of the agreement, for one job."""

    def __init__(self, me: int) -> None:
        self._me = me
        self._view = 0
        self._servers: tuple[int, ...] = ()  # of the map; the first is home
        self._has_changed = False  # the map has changed, or a connection broke, since the last sum: ask all servers
        self._totals: dict[int, tuple[float, ...]] = {}  # by number of the update's entry
        self._parts: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {}  # by (view, number): squares by server
        self._needed: dict[int, frozenset[int]] = {}  # by number: servers whose squares make the sum

    def total(self, number: int) -> tuple[float, ...] | None:
        return self._totals.get(number)

    def new_view(self, view: int, servers: Iterable[int]) -> None:
        """A new map: all squares have to be offered again, see `needs_part`."""
        self._view, self._servers = view, tuple(servers)
        self._has_changed = True
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] >= view}
        self._needed = {}

    def needs_part(self, number: int) -> bool:
        """This server has not offered its squares in this view and does not know the sum."""
        return number not in self._totals and number not in self._needed

    def offer(self, number: int, squares: tuple[float, ...], contributors: Iterable[int]) -> list[TellServers]:
        """This server's squares. `contributors`: servers that have a part of this update; dead ones do not count."""
        self._needed[number] = frozenset(contributors) & frozenset(self._servers)
        self._parts.setdefault((self._view, number), {})[self._me] = squares
        others = tuple(server for server in self._servers if server != self._me)
        told: list[TellServers] = []
        if self._has_changed and others:
            told.append(TellServers(others, self._view, number, squares, is_total=False))
        elif self._servers[0] != self._me:
            told.append(TellServers(self._servers[:1], self._view, number, squares, is_total=False))
        return told + self._sum(number)

    def heard_part(self, sender: int, view: int, number: int, squares: tuple[float, ...]) -> list[TellServers]:
        if number in self._totals:
            return [TellServers((sender,), view, number, self._totals[number], is_total=True)]
        if view < self._view:
            return []
        self._parts.setdefault((view, number), {})[sender] = squares
        return self._sum(number)

    def heard_total(self, view: int, number: int, squares: tuple[float, ...]) -> list[TellServers]:
        """A total of an older view is ignored: this server offers its part again in the newer view."""
        if view < self._view or number in self._totals:
            return []
        return self._settle(number, squares)

    def repeat(self) -> None:
        """Messages may be lost with a broken connection: offer the squares again, to all servers."""
        self._has_changed = True
        self._needed = {}

    def _sum(self, number: int) -> list[TellServers]:
        """At home, once all parts are there: the sum, for all servers."""
        parts: Mapping[int, tuple[float, ...]] = self._parts.get((self._view, number), {})
        needed = self._needed.get(number)
        if self._servers[:1] != (self._me,) or needed is None or not needed <= parts.keys() or number in self._totals:
            return []
        ordered = [parts[server] for server in sorted(needed)]
        total = tuple(sum(each) for each in zip(*ordered, strict=True))
        answers = self._settle(number, total)
        others = tuple(server for server in self._servers if server != self._me)
        return [TellServers(others, self._view, number, total, is_total=True), *answers] if others else answers

    def _settle(self, number: int, total: tuple[float, ...]) -> list[TellServers]:
        """The sum is known. Servers that asked in a view that is newer than this server's would wait for its part."""
        asking = [
            TellServers((sender,), later, number, total, is_total=True)
            for (later, asked), parts in self._parts.items()
            for sender in parts
            if asked == number and later > self._view
        ]
        self._totals[number] = total
        self._tidy(number)
        return asking

    def _tidy(self, number: int) -> None:
        self._has_changed = False
        self._parts = {key: parts for key, parts in self._parts.items() if key[1] > number}
        self._needed.pop(number, None)
        while len(self._totals) > KEPT:
            del self._totals[min(self._totals)]
