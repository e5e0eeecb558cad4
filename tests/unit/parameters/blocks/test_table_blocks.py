"""Cutting tables into blocks: every element is in exactly one, and no block is too large or crosses tensors."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.parameters import texts
from shoal.parameters.blocks.table_blocks import (
    GRAIN,
    ITEM_BYTES,
    LARGEST_BLOCK,
    MANY_BLOCKS,
    block_bytes_for,
    blocks_of,
    check_cut,
    table_bytes,
)
from shoal.wire.parameter_messages import MOST_BLOCKS
from shoal.wire.tables import RuleSpec, TableSpec, TensorSpec

shapes = st.lists(st.integers(0, 60), max_size=3).map(tuple)
tensors = st.builds(
    TensorSpec,
    name=st.text(max_size=4),
    shape=shapes,
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    optimizer=st.integers(0, 2),
    group=st.integers(0, 2),
)
tables = st.builds(
    TableSpec,
    kind=st.just("dense"),
    tensors=st.lists(tensors, max_size=6).map(tuple),
    rules=st.just((RuleSpec(name="SGD", groups=()),)),
    block_bytes=st.sampled_from([GRAIN, 2 * GRAIN, 16 * GRAIN]),
)


@given(table=tables)
def test_every_element_is_in_one_block(table: TableSpec) -> None:
    blocks = blocks_of(table)
    assert [block.number for block in blocks] == list(range(len(blocks)))
    for number, tensor in enumerate(table.tensors):
        its = [block for block in blocks if block.tensor == number]
        ends = [0, *(block.stop for block in its)]
        assert [block.start for block in its] == ends[:-1]
        assert ends[-1] == math.prod(tensor.shape)
        assert all((block.dtype, block.optimizer) == (tensor.dtype, tensor.optimizer) for block in its)
    assert sum(block.size for block in blocks) == table_bytes(table.tensors)
    assert all(0 < block.size <= table.block_bytes for block in blocks)
    assert all(block.size == (block.stop - block.start) * block.item_bytes for block in blocks)


@given(total=st.integers(0, 1 << 50))
def test_block_sizes_are_whole_pages_within_limits(total: int) -> None:
    size = block_bytes_for(total)
    assert GRAIN <= size <= max(LARGEST_BLOCK, -(-total // MANY_BLOCKS) + GRAIN)  # none is larger below 128 GiB
    assert total // size <= MANY_BLOCKS
    assert size % GRAIN == 0
    assert total // size <= 1024 or size >= LARGEST_BLOCK


def test_a_dtype_that_cannot_be_held_is_named_with_what_can() -> None:
    tensor = TensorSpec(name="model 1/embedding", shape=(3,), dtype="int64")
    table = TableSpec(kind="dense", tensors=(tensor,), rules=(), block_bytes=GRAIN)
    with pytest.raises(UsageError) as caught:
        blocks_of(table)
    assert str(caught.value) == texts.bad_dtype("model 1/embedding", "int64", ITEM_BYTES)


def test_blocks_that_would_cut_through_elements_are_refused() -> None:
    table = TableSpec(kind="dense", tensors=(), rules=(), block_bytes=4098)
    with pytest.raises(UsageError, match="4098"):
        blocks_of(table)


def test_a_table_of_too_many_blocks_is_refused_before_it_is_cut() -> None:
    """Eight thousand million floats in the smallest blocks: cut, they would be eight million objects."""
    huge = TensorSpec(name="huge", shape=(8 * 10**9,), dtype="float32")
    table = TableSpec(kind="dense", tensors=(huge,), rules=(), block_bytes=GRAIN)
    for look in (check_cut, blocks_of):
        with pytest.raises(UsageError) as caught:
            look(table)
        better = block_bytes_for(table_bytes(table.tensors))
        said = texts.too_many_blocks(32 * 10**9, 7812500, GRAIN, most=MOST_BLOCKS, better=better)
        assert str(caught.value) == said
    check_cut(msgspec.structs.replace(table, block_bytes=better))
    endless = TensorSpec(name="endless", shape=(2**48, 2**48), dtype="float64")
    with pytest.raises(UsageError, match="at most"):
        check_cut(msgspec.structs.replace(table, tensors=(endless,), block_bytes=2**47))
