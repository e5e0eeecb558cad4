"""Where each block of a table is under a map of servers: which to write to, which to read from, what to move. Pure.

While blocks move, a map has two placements: updates go to the holders of both; reads go to the first living holder of
the complete one. Not here: the hashing (`hash_ring`), how maps follow each other (`server_group`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import numpy as np

from shoal.parameters.blocks.hash_ring import chains
from shoal.parameters.blocks.part_layout import part_order
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.values import ServerMap
from shoal.wire.tables import TableSpec

Chain = tuple[int, ...]  # server numbers, the first holder first


def keys_digest(table_digest: bytes, blocks: Iterable[int]) -> bytes:
    """The digest by which messages refer to a key list once it was sent."""
    numbers = np.fromiter(blocks, dtype="<u4").tobytes()
    return hashlib.blake2b(table_digest + numbers, digest_size=16).digest()


class Placement:
    """One table under one map."""

    def __init__(self, table: TableSpec, servers: ServerMap) -> None:
        self.table = table
        self.map = servers
        self._living = frozenset(server.number for server in servers.servers)
        sizes = [block.size for block in blocks_of(table)]
        self._before = chains(sizes, servers.before, servers.replicas)
        self._after = self._before if servers.is_settled else chains(sizes, servers.after, servers.replicas)

    @property
    def block_count(self) -> int:
        return len(self._before)

    def readers(self, block: int) -> Chain:
        """Living servers that certainly have the values of a block; read from the first."""
        return tuple(number for number in self._before[block] if number in self._living)

    def reader(self, block: int) -> int | None:
        """The server to read a block from; None: the block is lost."""
        return next((number for number in self._before[block] if number in self._living), None)

    def answerer(self, block: int) -> int:
        """The server that answers for a block: its reader or, if the block is lost, the first of its next holders."""
        reader = self.reader(block)
        return self.writers(block)[0] if reader is None else reader

    def writers(self, block: int) -> Chain:
        """Living servers that get every update of a block: its present and its next holders."""
        both = dict.fromkeys((*self._before[block], *self._after[block]))
        return tuple(number for number in both if number in self._living)

    def keys(self, server: int) -> tuple[int, ...]:
        """The server's key list: the blocks that are written to it, in part order."""
        return self._keys.get(server, ())

    @functools.cached_property
    def lost(self) -> tuple[int, ...]:
        """Blocks that no living server has: a worker must assign them anew."""
        return tuple(block for block in range(self.block_count) if self.reader(block) is None)

    def lost_to(self, server: int) -> tuple[int, ...]:
        """The lost blocks that this server should hold, in part order."""
        return part_order(self.table, (block for block in self.lost if server in self._after[block]))

    def fetches(self, server: int) -> dict[int, tuple[int, ...]]:
        """The blocks that a server has to fetch, in part order, by the server to fetch them from."""
        found: dict[int, list[int]] = {}
        for block, chain in enumerate(self._after):
            if server in chain and server not in self._before[block]:
                source = self.reader(block)
                if source is not None:
                    found.setdefault(source, []).append(block)
        return {source: part_order(self.table, blocks) for source, blocks in sorted(found.items())}

    @functools.cached_property
    def _keys(self) -> dict[int, tuple[int, ...]]:
        return self._by_server(self.writers(block) for block in range(self.block_count))

    def _by_server(self, holders: Iterable[Chain]) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for block, servers in enumerate(holders):
            for server in servers:
                found.setdefault(server, []).append(block)
        return {server: part_order(self.table, blocks) for server, blocks in found.items()}
