"""Whether servers still have the ledger that a worker knows, judged from what the worker hears of them. Pure.

A ledger is lost with the last server that has it; later servers begin another one. A worker must not take the new
ledger for the old one: a read that names an entry of the old one would wait for ever. Not here: what is done about the
loss (`client_core`).
"""

from __future__ import annotations

from shoal.values import ServerMap


class Lineage:
    def __init__(self) -> None:
        self.origin: int | None = None  # map version that the servers' ledger began with; None: not heard yet
        self.is_lost = False  # the known ledger is lost, and the worker has not begun anew since
        self._servers: frozenset[int] = frozenset()  # of the newest map

    def map_changed(self, servers: ServerMap) -> bool:
        """True: no server of the map before is left, so the ledger is lost."""
        before, self._servers = self._servers, frozenset(server.number for server in servers.servers)
        is_lost = bool(before) and not before & self._servers
        if is_lost:
            self.origin, self.is_lost = None, True
        return is_lost

    def heard_origin(self, origin: int) -> bool:
        """A server has named its ledger. True: it is another ledger, so the known one is lost.

        That server was in a map together with those that had the known ledger, but not long enough to get a copy.
        """
        before, self.origin = self.origin, origin
        is_lost = before not in (None, origin)
        self.is_lost = self.is_lost or is_lost
        return is_lost

    def begin_anew(self) -> None:
        """From now on the worker uses the ledger that the servers have now."""
        self.is_lost = False
