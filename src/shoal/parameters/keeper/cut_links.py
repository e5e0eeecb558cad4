"""Chooses which server has to go if the keeper hears two servers that cannot reach each other. Pure.

Servers agree on every update and on every new map, so that two servers cut off from each other would hold up all others
for ever. The server that cannot reach the most others goes; of equals, the newest. The caller gives the times, in
seconds. Not here: how long a server tries before it reports another as cut off (`server_peers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

SETTLING_SECONDS = 2.0  # until all servers concerned have reported; servers report twice a second


class CutLinks:
    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}  # by the reporting server and the server that it cannot reach

    def said(self, server: int, unreached: Collection[int], now: float) -> None:
        """The latest report of a server, which replaces its earlier one."""
        before = self._since
        self._since = {pair: since for pair, since in before.items() if pair[0] != server}
        for other in unreached:
            self._since[server, other] = before.get((server, other), now)

    def victim(self, living: Collection[int], now: float) -> tuple[int, str] | None:
        """The server that has to go, and why; None: none has to, or it is too early to tell."""
        said = {pair: since for pair, since in self._since.items() if {*pair} <= {*living}}
        if not any(now - since >= SETTLING_SECONDS for since in said.values()):
            return None
        lacking = Counter(server for pair in {frozenset(pair) for pair in said} for server in pair)
        found = max(lacking, key=lambda server: (lacking[server], server))
        others = sorted({other for pair in said if found in pair for other in pair} - {found})
        return found, f"it and server {', '.join(map(str, others))} cannot reach each other"
