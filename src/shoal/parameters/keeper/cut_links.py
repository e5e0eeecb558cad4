"""Servers that the keeper hears and that cannot reach each other: which of them has to go. Pure.

Servers agree on every update and on every new map, so two that are cut off from each other would hold all others up for
ever. Who lacks the most others goes; where that decides nothing, the newest. Times are the caller's, in seconds. Not
here: how long a server tries before it says so (`server_peers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

SETTLING_SECONDS = 2.0  # until everybody who is concerned has said so: servers speak twice a second


class CutLinks:
    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}  # by who said it and whom it cannot reach

    def said(self, server: int, unreached: Collection[int], now: float) -> None:
        """What a server says now; what it said before counts no more."""
        before = self._since
        self._since = {pair: since for pair, since in before.items() if pair[0] != server}
        for other in unreached:
            self._since[server, other] = before.get((server, other), now)

    def victim(self, living: Collection[int], now: float) -> tuple[int, str] | None:
        """Who has to go, and why; None: nobody, or it is too early to tell."""
        said = {pair: since for pair, since in self._since.items() if {*pair} <= {*living}}
        if not any(now - since >= SETTLING_SECONDS for since in said.values()):
            return None
        lacking = Counter(server for pair in {frozenset(pair) for pair in said} for server in pair)
        found = max(lacking, key=lambda server: (lacking[server], server))
        others = sorted({other for pair in said if found in pair for other in pair} - {found})
        return found, f"it and server {', '.join(map(str, others))} cannot reach each other"
