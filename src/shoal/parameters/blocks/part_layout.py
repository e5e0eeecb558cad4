"""How the blocks of one server lie in its memory, and which of them form a unit. Pure.

A server's part is one run of bytes: its blocks in *part order*, without gaps. Larger elements come first, so that every
block is aligned to its elements. *Units* are neighbouring blocks of one dtype and one optimizer's group, up to about
8 MiB: messages, updates and seals concern whole units. A worker and a server that have the same list of blocks
compute the same layout. Not here: which blocks a server has (`placement`).
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable

import msgspec

from shoal.errors import WireError
from shoal.parameters.blocks.table_blocks import Block, blocks_of
from shoal.wire.parameter_messages import UNIT_BLOCKS
from shoal.wire.tables import TableSpec

UNIT_BYTES = 8 << 20  # a unit is cut when it would be larger; a message this long uses a connection well


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Blocks `first` to `last` of a key list, which are bytes `start` to `stop` of the part."""

    first: int  # place in the key list
    last: int  # one past the last
    start: int  # bytes
    stop: int
    dtype: str
    optimizer: int
    group: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start


def _rank(block: Block) -> tuple[int, str, int, int, int]:
    return (-block.item_bytes, block.dtype, block.optimizer, block.group, block.number)


@functools.lru_cache(maxsize=16)
def _ranks(blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """For each block number, its place in a part that holds all blocks."""
    ranks = [0] * len(blocks)
    for place, block in enumerate(sorted(blocks, key=_rank)):
        ranks[block.number] = place
    return tuple(ranks)


def part_order(table: TableSpec, numbers: Iterable[int]) -> tuple[int, ...]:
    """The blocks in the order in which a server keeps them and a key list names them."""
    return tuple(sorted(numbers, key=_ranks(blocks_of(table)).__getitem__))


class PartLayout:
    """Places of the blocks of one key list."""

    def __init__(self, table: TableSpec, blocks: Iterable[int]) -> None:
        """`blocks` are numbers in part order, each once; any other list is a `WireError`."""
        self.blocks = tuple(blocks)  # numbers
        self._check(table)
        every = blocks_of(table)
        self._offsets = [0]
        for number in self.blocks:
            self._offsets.append(self._offsets[-1] + every[number].size)
        self.size = self._offsets[-1]  # bytes
        self.units = tuple(self._cut_units([every[number] for number in self.blocks]))
        self._unit_starts = [unit.first for unit in self.units]

    def _check(self, table: TableSpec) -> None:
        ranks = _ranks(blocks_of(table))
        if self.blocks and not 0 <= min(self.blocks) <= max(self.blocks) < len(ranks):
            raise WireError(f"a key list names blocks up to {max(self.blocks)}; the table has {len(ranks)}")
        if any(ranks[one] >= ranks[other] for one, other in zip(self.blocks, self.blocks[1:], strict=False)):
            raise WireError("a key list names a block twice, or not in the order in which servers keep them")

    def _cut_units(self, blocks: list[Block]) -> Iterable[Unit]:
        first = 0
        for last in range(1, len(blocks) + 1):
            if last < len(blocks) and self._belongs(blocks, first, last):
                continue
            block = blocks[first]
            yield Unit(
                first=first,
                last=last,
                start=self._offsets[first],
                stop=self._offsets[last],
                dtype=block.dtype,
                optimizer=block.optimizer,
                group=block.group,
            )
            first = last

    def _belongs(self, blocks: list[Block], first: int, last: int) -> bool:
        """Whether the block at `last` continues the unit that starts at `first`."""
        one, other = blocks[first], blocks[last]
        is_same = (one.dtype, one.optimizer, one.group) == (other.dtype, other.optimizer, other.group)
        is_small = self._offsets[last + 1] - self._offsets[first] <= UNIT_BYTES and last - first < UNIT_BLOCKS
        return is_same and is_small

    def offset(self, index: int) -> int:
        """First byte of the block at this place of the key list; for one past the last block the size of the part."""
        return self._offsets[index]

    def unit_of(self, index: int) -> int:
        """Number of the unit that the block at this place of the key list is in."""
        if not 0 <= index < len(self.blocks):
            raise IndexError(f"place {index} of a list of {len(self.blocks)} blocks")
        return bisect.bisect_right(self._unit_starts, index) - 1
