"""How the tensors of a table are cut into blocks, the smallest things that servers hold and move. Pure.

A block is a run of elements of one tensor and never crosses tensors, so it has one dtype and one optimizer's group.
Blocks are numbered in the order of the table; every process cuts the same table in the same way. Not here: which
server holds a block (`hash_ring`, `placement`), where it is in a server's memory (`part_layout`). No torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import msgspec

from shoal.errors import UsageError
from shoal.parameters import texts
from shoal.wire.parameter_messages import MOST_BLOCKS
from shoal.wire.tables import TableSpec, TensorSpec

GRAIN = 4096  # bytes; blocks are cut at multiples of it, which is one of every dtype's size
LARGEST_BLOCK = 1 << 20  # bytes, in tables of up to `MANY_BLOCKS` of them
USUAL_BLOCKS = 1024  # per table: enough for 16 servers to get even shares, few enough for short key lists
MANY_BLOCKS = 1 << 17  # of a table, besides one for each tensor: larger tables have larger blocks instead of more
LARGEST_TABLE = 1 << 50  # bytes

# By torch's names; what a parameter that is trained may be made of.
ITEM_BYTES = {
    "complex128": 16,
    "complex64": 8,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}


class Block(msgspec.Struct, frozen=True, gc=False):
    """Elements `start` to `stop` of one tensor as it lies flat."""

    number: int  # counts from 0 over the whole table
    tensor: int  # number in the table
    start: int  # first element
    stop: int  # one past the last element
    size: int  # bytes
    dtype: str
    optimizer: int
    group: int

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]


def block_bytes_for(total: int) -> int:
    """How large blocks should be in a table of `total` bytes; what `TableSpec.block_bytes` is to be."""
    wanted = max(min(max(total // USUAL_BLOCKS, GRAIN), LARGEST_BLOCK), total // MANY_BLOCKS)
    return -(-wanted // GRAIN) * GRAIN


def table_bytes(tensors: Iterable[TensorSpec]) -> int:
    return sum(math.prod(tensor.shape) * item_bytes(tensor) for tensor in tensors)


def item_bytes(tensor: TensorSpec) -> int:
    try:
        return ITEM_BYTES[tensor.dtype]
    except KeyError:
        raise UsageError(texts.bad_dtype(tensor.name, tensor.dtype, ITEM_BYTES)) from None


@functools.lru_cache(maxsize=16)
def _cut(tensors: tuple[TensorSpec, ...], block_bytes: int) -> tuple[Block, ...]:
    check_cut(TableSpec(kind="dense", tensors=tensors, rules=(), block_bytes=block_bytes))
    found: list[Block] = []
    for number, tensor in enumerate(tensors):
        item = item_bytes(tensor)
        count, step = math.prod(tensor.shape), block_bytes // item
        for start in range(0, count, step):
            stop = min(start + step, count)
            found.append(
                Block(
                    number=len(found),
                    tensor=number,
                    start=start,
                    stop=stop,
                    size=(stop - start) * item,
                    dtype=tensor.dtype,
                    optimizer=tensor.optimizer,
                    group=tensor.group,
                )
            )
    return tuple(found)


def check_cut(table: TableSpec) -> None:
    """`UsageError`: it cannot be cut, or not without too many blocks. Nothing is cut for that."""
    if table.block_bytes < GRAIN or table.block_bytes % GRAIN:
        raise UsageError(texts.bad_block_size(table.block_bytes, GRAIN))
    if (size := table_bytes(table.tensors)) > LARGEST_TABLE:
        raise UsageError(texts.table_too_large(size, LARGEST_TABLE))
    count = sum(
        -(-math.prod(tensor.shape) // (table.block_bytes // item_bytes(tensor)))  # rounded up
        for tensor in table.tensors
    )
    if count > MOST_BLOCKS:
        better = block_bytes_for(size)
        raise UsageError(texts.too_many_blocks(size, count, table.block_bytes, most=MOST_BLOCKS, better=better))


def blocks_of(table: TableSpec) -> tuple[Block, ...]:
    """All blocks in order. A tensor without elements has none. `UsageError`: see `check_cut`."""
    return _cut(table.tensors, table.block_bytes)
