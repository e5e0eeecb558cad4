"""What a server holds of one job under one version of the map: its blocks, and pushes that are staged for them.

A new version is begun with a new one, which takes over the blocks that it needs of the one before, unit by unit. Not
here: what is done with it (`space`), and when it is made (`space`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shoal.parameters.blocks.memory_budget import SpaceBudget
from shoal.parameters.blocks.part_layout import PartLayout
from shoal.parameters.blocks.placement import Placement, keys_digest
from shoal.parameters.blocks.table_blocks import blocks_of, table_bytes
from shoal.parameters.server.updates.shard import Shard
from shoal.parameters.server.updates.staging import StagedPushes
from shoal.parameters.server.updates.update_rules import needed_bytes
from shoal.values import ServerMap
from shoal.wire.tables import TableSpec

ARENA_TABLES, ARENA_SLACK = 16, 1 << 28  # of memory that a worker may share: times the table, and bytes besides


@dataclass(frozen=True)
class HoldingPlan:
    """What a server will hold by a map."""

    table: TableSpec
    map: ServerMap
    server: int  # number
    placement: Placement
    layout: PartLayout
    keys: bytes  # digest of the key list
    needed: int  # bytes of its blocks with all of their state
    fetches: Mapping[int, tuple[int, ...]]  # blocks that come from other servers, by who has them
    lost: tuple[int, ...]  # blocks that should be here and that nobody has


def plan_of(table: TableSpec, servers: ServerMap, server: int) -> HoldingPlan:
    """Takes seconds for the largest tables, and no memory for blocks."""
    placement = Placement(table, servers)
    layout = PartLayout(table, placement.keys(server))
    return HoldingPlan(
        table=table,
        map=servers,
        server=server,
        placement=placement,
        layout=layout,
        keys=keys_digest(table.digest, layout.blocks),
        needed=needed_bytes(table, layout.blocks),
        fetches=placement.fetches(server),
        lost=placement.lost_to(server),
    )


class Holding:
    def __init__(self, plan: HoldingPlan, budget: SpaceBudget, older: Holding | None = None) -> None:
        """`older` has what `take_over` takes over. What it has no blocks for is absent."""
        self.table = plan.table
        self.map = plan.map
        self.placement = plan.placement
        self.layout = plan.layout
        self.shard: Shard
        self.keys = plan.keys
        self.needed = plan.needed  # bytes of its blocks with all of their state
        # Workers share a few pushes' worth. Reading memory that nobody has written takes some: of this process's own.
        self.largest_arena = ARENA_SLACK + ARENA_TABLES * plan.map.replicas * table_bytes(plan.table.tensors)
        self._me = plan.server
        self._fetches, self._lost = plan.fetches, plan.lost
        self._answers_for: tuple[int, frozenset[int]] | None = None  # by which version of the map
        self._older: Holding | None = None  # that something is still to be taken over from
        self._taken = 0  # units that are
        if older is not None and older.layout.blocks == self.layout.blocks:
            self.shard = older.shard  # workers that read from its memory go on doing so
        else:
            self.shard = Shard(self.table, self.layout, is_shared=True)
            self._older = older
        self.staging = StagedPushes(self.table, self.layout, budget)

    def take_over(self) -> bool:
        """One unit of what the older one has; whether there is more to take over."""
        if self._older is not None and self._taken < len(self.layout.units):
            self.shard.take_unit(self._older.shard, self._taken)
            self._taken += 1
            return True
        self._older = None
        return False

    @property
    def view(self) -> int:
        return self.map.version

    @property
    def held_bytes(self) -> int:
        return self.shard.held_bytes + self.staging.held_bytes

    @property
    def claimed_bytes(self) -> int:
        """What it holds, or has been promised: state that its optimizers will keep, buffers as it has used before."""
        staged = max(self.staging.held_bytes, self.staging.most_buffers)
        return max(self.needed, self.shard.held_bytes + staged)

    @property
    def offer(self) -> bytes:
        """Of the arena that the values are in."""
        offer = self.shard.memory.offer
        return b"" if offer is None else msgspec.msgpack.encode(offer)

    def fetches(self) -> dict[int, tuple[int, ...]]:
        """Blocks that have to come from other servers, by who has them."""
        absent = set(self.shard.absent())
        found = {source: tuple(each for each in blocks if each in absent) for source, blocks in self._fetches.items()}
        return {source: blocks for source, blocks in found.items() if blocks}

    def present(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of them that are here and have values."""
        here = set(self.layout.blocks) - set(self.shard.absent())
        return tuple(block for block in blocks if block in here)

    def lost(self) -> tuple[int, ...]:
        """Blocks that nobody has, and that this server is the first to hold: each is one server's to tell of."""
        absent = set(self.shard.absent())
        return tuple(block for block in self._lost if block in absent and self._is_reader(block))

    def size_of(self, blocks: tuple[int, ...]) -> int:
        """Bytes of their values."""
        every = blocks_of(self.table)
        return sum(every[block].size for block in blocks)

    def lacks_for_reader(self, first: int, last: int) -> bool:
        """A block of the key list that workers read from this server has no values."""
        return not self.shard.has(first, last) and any(
            not self.shard.has(place, place + 1) and self._is_reader(self.layout.blocks[place])
            for place in range(first, last)
        )

    def answers_for(self, living: ServerMap) -> frozenset[int]:
        """Blocks whose gradients are this server's to speak of, among those that are alive in a newer map too.

        Where all that had a block when this map began have left since, it is one of those that it has moved to.
        """
        if self._answers_for is None or self._answers_for[0] != living.version:
            both = tuple(server for server in self.map.servers if living.server(server.number) is not None)
            placement = Placement(self.table, msgspec.structs.replace(self.map, servers=both))
            mine = frozenset(block for block in self.layout.blocks if placement.answerer(block) == self._me)
            self._answers_for = (living.version, mine)
        return self._answers_for[1]

    def close(self) -> None:
        self.shard.close()

    def _is_reader(self, block: int) -> bool:
        return self.placement.answerer(block) == self._me
