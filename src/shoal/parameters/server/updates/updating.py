"""One entry of the ledger that changes a server's blocks, applied unit by unit.

A clipped update is summed first, also unit by unit, for the norm over all servers. Not here: the order of entries
(`work_queue`), the agreement on the norm (`norms`).
"""

from __future__ import annotations

from shoal.errors import ShoalError
from shoal.parameters.ledger.effects import Replace, Update
from shoal.parameters.server.updates.holding import Holding
from shoal.parameters.server.updates.shard_update import ShardUpdate
from shoal.parameters.server.updates.staging import StagedPush
from shoal.wire.tables import PushId


class Updating:
    def __init__(self, holding: Holding, work: Update | Replace) -> None:
        self.pushes = work.pushes if isinstance(work, Update) else (work.push,)
        self._holding = holding
        staged = [_staged(holding, push, work.number) for push in self.pushes]
        self._assigned = staged[0] if isinstance(work, Replace) else None
        self._update: ShardUpdate | None = None
        if isinstance(work, Update) and staged:  # an update without pushes only counts
            self._update = ShardUpdate(holding.table, holding.layout, work, staged)
        self._squares = [0.0] * len(holding.table.rules)
        self._answered_for: frozenset[int] | None = None  # blocks that are in the squares
        self._squared = 0  # units that are in the squares

    @property
    def needs_norms(self) -> bool:
        return self._update is not None and self._update.needs_norms

    @property
    def units(self) -> int:
        """How many have to be applied."""
        return len(self._holding.layout.units) if self._update is not None or self._assigned is not None else 0

    @property
    def held_bytes(self) -> int:
        return 0 if self._update is None else self._update.held_bytes

    def square_unit(self, blocks: frozenset[int]) -> tuple[float, ...] | None:
        """Add the squares of these blocks in one more unit. Returns the sums by optimizer once all units are in."""
        assert self._update is not None, "only updates with gradients have norms"
        if blocks != self._answered_for:
            self._answered_for, self._squared = blocks, 0
            self._squares = [0.0] * len(self._squares)
        units = self._holding.layout.units
        if self._squared < len(units):
            self._update.keep_sum(self._holding.staging.pool)
            self._squares[units[self._squared].optimizer] += self._update.square(self._squared, blocks)
            self._squared += 1
        return tuple(self._squares) if self._squared == len(units) else None

    def clip(self, squares: tuple[float, ...]) -> None:
        assert self._update is not None, "only updates with gradients are clipped"
        self._update.clip(squares)

    def apply_unit(self, number: int) -> None:
        if self._assigned is not None:
            self._holding.shard.assign_unit(self._assigned, number)
        else:
            assert self._update is not None, "there is something to apply"
            self._holding.shard.apply_unit(self._update, number)

    def close(self) -> None:
        if self._update is not None:
            self._update.close()


def _staged(holding: Holding, push: PushId, number: int) -> StagedPush:
    if not holding.layout.blocks:  # there are fewer blocks than servers: nothing is staged here, and nothing changes
        return StagedPush(holding.table, holding.layout)
    found = holding.staging.find(push)
    if found is None or not found.is_complete:
        raise ShoalError(
            f"push {push.number} of worker {push.worker} of entry {number} is not staged here: workers stage a push on "
            "all servers before they propose it"
        )
    return found
