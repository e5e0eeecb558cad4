"""What a server holds of one job under one version of the map: its blocks, and pushes that are staged for them.

A new version of the map begins with a new holding, which takes over the blocks that it needs from the one before, unit
by unit. Not here: when a holding is made, and what is done with it (`space`).
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

ARENA_TABLES, ARENA_SLACK = 16, 1 << 28  # most memory that a worker may share: tables per replica, plus bytes


@dataclass(frozen=True)
class HoldingLayout:
    """What a server will hold under a map."""

    table: TableSpec
    map: ServerMap
    server: int  # number
    placement: Placement
    layout: PartLayout
    keys: bytes  # digest of the key list
    needed: int  # bytes of its blocks with all of their state
    fetches: Mapping[int, tuple[int, ...]]  # blocks to fetch, by the server that has them
    lost: tuple[int, ...]  # blocks that should be here and that no server has


def layout_of(table: TableSpec, servers: ServerMap, server: int) -> HoldingLayout:
    """Takes seconds for the largest tables, and no memory for blocks."""
    placement = Placement(table, servers)
    layout = PartLayout(table, placement.keys(server))
    return HoldingLayout(
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
    def __init__(self, plan: HoldingLayout, budget: SpaceBudget, older: Holding | None = None) -> None:
        """`take_over` takes blocks from `older`; blocks that `older` lacks are absent."""
        self.table = plan.table
        self.map = plan.map
        self.placement = plan.placement
        self.layout = plan.layout
        self.shard: Shard
        self.keys = plan.keys
        self.needed = plan.needed  # bytes of its blocks with all of their state
        # An honest arena has room for a few pushes. Reading pages that were never written allocates them, and this
        # process is charged for it, hence the limit.
        self.largest_arena = ARENA_SLACK + ARENA_TABLES * plan.map.replicas * table_bytes(plan.table.tensors)
        self._me = plan.server
        self._fetches, self._lost = plan.fetches, plan.lost
        self._answers_for: tuple[int, frozenset[int]] | None = None  # map version, and the answer for it
        self._older: Holding | None = None  # while there is something to take over from it
        self._taken = 0  # units taken over so far
        if older is not None and older.layout.blocks == self.layout.blocks:
            self.shard = older.shard  # workers can go on reading from its memory
        else:
            self.shard = Shard(self.table, self.layout, is_shared=True)
            self._older = older
        self.staging = StagedPushes(self.table, self.layout, budget)

    def take_over(self) -> bool:
        """Take over one unit from the older holding. False: there was none left."""
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
        """Memory held or promised: state that its optimizers will keep, and as many buffers as it has used at once."""
        staged = max(self.staging.held_bytes, self.staging.most_buffers)
        return max(self.needed, self.shard.held_bytes + staged)

    @property
    def offer(self) -> bytes:
        """The offer of the arena that the values are in; empty if they are not shared."""
        offer = self.shard.memory.offer
        return b"" if offer is None else msgspec.msgpack.encode(offer)

    def fetches(self) -> dict[int, tuple[int, ...]]:
        """Blocks that have to come from other servers, by the server that has them."""
        absent = set(self.shard.absent())
        found = {source: tuple(each for each in blocks if each in absent) for source, blocks in self._fetches.items()}
        return {source: blocks for source, blocks in found.items() if blocks}

    def present(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of `blocks` that are here and have values."""
        here = set(self.layout.blocks) - set(self.shard.absent())
        return tuple(block for block in blocks if block in here)

    def lost(self) -> tuple[int, ...]:
        """Blocks that no server has and that are read from this one: so exactly one server reports each."""
        absent = set(self.shard.absent())
        return tuple(block for block in self._lost if block in absent and self._is_reader(block))

    def size_of(self, blocks: tuple[int, ...]) -> int:
        """Bytes of their values."""
        every = blocks_of(self.table)
        return sum(every[block].size for block in blocks)

    def lacks_for_reader(self, first: int, last: int) -> bool:
        """Some block in this range of the key list has no values here, although workers read it from this server."""
        return not self.shard.has(first, last) and any(
            not self.shard.has(place, place + 1) and self._is_reader(self.layout.blocks[place])
            for place in range(first, last)
        )

    def answers_for(self, living: ServerMap) -> frozenset[int]:
        """Blocks whose gradients this server reports, among the servers of this map that are still in `living`.

        If all servers that had a block when this map began have left, a server that the block moves to reports it.
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
