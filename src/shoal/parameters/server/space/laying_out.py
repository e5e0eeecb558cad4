"""How a server comes to hold its part of a table, by a first map or a new one: bit by bit, so that others are served.

First it is worked out, aside, which blocks those are and where they lie; then room is looked for; then unit after unit
takes over what the layout before has of it. Nothing is allocated before there is room for it. Not here: what comes from
other servers (`block_moves`), when it is done (`space`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from shoal.parameters.server.space.site import Site
from shoal.parameters.server.updates.holding import Holding, Plan
from shoal.wire.tables import TableSpec

Make = Callable[[Plan], Holding]  # `ServerRefused`: there is no room for it


class LayingOut:
    def __init__(
        self, site: Site, table: TableSpec, older: Holding | None, plan: Callable[[], Plan], make: Make
    ) -> None:
        """`plan` is called in the second thread; `older` is used up when the new one, that `make` makes, is whole."""
        self.table = table
        self._site = site
        self._older = older
        self._make = make
        self._plan: Future[Plan] = site.background.compute(plan)
        self._holding: Holding | None = None

    @property
    def has_work(self) -> bool:
        """Otherwise it is being worked out, and the server is woken when that is done."""
        return self._holding is not None or self._plan.done()

    def work(self) -> Holding | None:
        """A little of it; the new holding once it is whole. `ServerRefused`: there is no room for it."""
        if self._holding is None:
            self._holding = self._make(self._plan.result())
        if self._holding.take_over():
            return None
        if self._older is not None and self._older.shard is not self._holding.shard:
            self._site.background.dispose(self._older.close)
        return self._holding

    def cancel(self) -> None:
        """What there is of the new one goes; the older one is the caller's."""
        self._plan.cancel()
        if self._holding is not None and (self._older is None or self._older.shard is not self._holding.shard):
            self._site.background.dispose(self._holding.close)
