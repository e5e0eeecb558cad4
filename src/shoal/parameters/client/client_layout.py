"""How a worker cuts tensors for the servers of one map: which elements go where, and which are read from where. Pure.

A *slot* of a worker's staging memory has an area for every server, laid out exactly like the server's part, so each
message is one run of bytes. A *stretch* is a run of a tensor's elements that lies in one unit of one server's part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.parameters.blocks.part_layout import PartLayout
from shoal.parameters.blocks.placement import Placement, keys_digest
from shoal.parameters.blocks.table_blocks import Block, blocks_of
from shoal.values import ServerMap
from shoal.wire.tables import TableSpec

PAGE = 4096  # bytes; areas begin at multiples of it


@dataclass(frozen=True)
class Stretch:
    """Elements `start` to `stop` of a tensor, at byte `place` of a server's part."""

    server: int
    piece: int  # in `writes`: number of the unit; in `reads`: index into `ClientLayout.pieces[server]`
    start: int  # elements of the flattened tensor
    stop: int
    place: int  # bytes
    size: int  # bytes


@dataclass(frozen=True)
class Piece:
    """Neighbouring blocks of one unit that are read from one server: what one message asks for."""

    unit: int
    first: int  # place in the server's key list
    last: int  # one past the last


class ClientLayout:
    """One table under one map."""

    def __init__(self, table: TableSpec, servers: ServerMap) -> None:
        self.table = table
        self.map = servers
        self.placement = Placement(table, servers)
        self.parts = {
            server.number: PartLayout(table, self.placement.keys(server.number))
            for server in servers.servers
            if self.placement.keys(server.number)
        }
        self.digests = {number: keys_digest(table.digest, part.blocks) for number, part in self.parts.items()}
        self.names = {tensor.name: number for number, tensor in enumerate(table.tensors)}
        self._blocks = blocks_of(table)
        self._tensor_blocks: list[list[Block]] | None = None  # by tensor; made when first needed
        self.areas: dict[int, int] = {}  # by server: where its area begins in a slot
        size = 0
        for number, part in self.parts.items():
            self.areas[number] = size
            size += -(-part.size // PAGE) * PAGE
        self.slot_bytes = size
        self.pieces = {number: tuple(self._cut_pieces(number)) for number in self.parts}
        self.writes = self._stretches(self._written())  # by number of the tensor
        self.reads = self._stretches(self._read())

    @property
    def version(self) -> int:
        return self.map.version

    def blocks_of(self, tensor: int) -> tuple[Block, ...]:
        """The blocks of one tensor, in order."""
        if self._tensor_blocks is None:
            self._tensor_blocks = [[] for _ in self.table.tensors]
            for block in self._blocks:
                self._tensor_blocks[block.tensor].append(block)
        return tuple(self._tensor_blocks[tensor])

    def reader(self, block: int) -> int:
        """The server to ask for a block. For a lost block, its next holder: it may have been assigned anew there."""
        return self.placement.answerer(block)

    def _cut_pieces(self, server: int) -> Iterator[Piece]:
        part = self.parts[server]
        for number, unit in enumerate(part.units):
            indexes = range(unit.first, unit.last)
            for is_read, run in itertools.groupby(indexes, lambda i: self.reader(part.blocks[i]) == server):
                if is_read:
                    members = list(run)
                    yield Piece(number, members[0], members[-1] + 1)

    def _written(self) -> Iterator[tuple[int, int, Iterable[int]]]:
        for server, part in self.parts.items():
            for number, unit in enumerate(part.units):
                yield server, number, range(unit.first, unit.last)

    def _read(self) -> Iterator[tuple[int, int, Iterable[int]]]:
        for server, pieces in self.pieces.items():
            for number, piece in enumerate(pieces):
                yield server, number, range(piece.first, piece.last)

    def _stretches(self, runs: Iterable[tuple[int, int, Iterable[int]]]) -> list[list[Stretch]]:
        """By tensor, in order of elements. Neighbouring blocks of a tensor become one stretch."""
        found: list[list[Stretch]] = [[] for _ in self.table.tensors]
        for server, piece, indexes in runs:
            part = self.parts[server]
            open_blocks: list[tuple[int, Block]] = []  # place in the key list, block
            for index in indexes:
                block = self._blocks[part.blocks[index]]
                last = open_blocks[-1][1] if open_blocks else block
                if open_blocks and (last.number + 1, last.tensor) != (block.number, block.tensor):
                    self._add(found, server, piece, open_blocks)
                    open_blocks = []
                open_blocks.append((index, block))
            self._add(found, server, piece, open_blocks)
        for stretches in found:
            stretches.sort(key=lambda stretch: stretch.start)
        return found

    def _add(self, found: list[list[Stretch]], server: int, piece: int, blocks: list[tuple[int, Block]]) -> None:
        if not blocks:
            return
        first, last = blocks[0][1], blocks[-1][1]
        found[first.tensor].append(
            Stretch(
                server=server,
                piece=piece,
                start=first.start,
                stop=last.stop,
                place=self.parts[server].offset(blocks[0][0]),
                size=(last.stop - first.start) * first.item_bytes,
            )
        )


def slot_capacity(table: TableSpec, replicas: int) -> int:
    """The most bytes that the areas of any map need: while blocks move, both placements are written to."""
    total = sum(block.size for block in blocks_of(table))
    return -(-total * 2 * replicas // PAGE) * PAGE + 256 * PAGE
