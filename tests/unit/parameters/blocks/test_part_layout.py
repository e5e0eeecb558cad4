"""How a server's blocks lie in memory: without gaps, aligned, in units of one kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.parameters.blocks.part_layout import UNIT_BYTES, PartLayout, part_order
from shoal.parameters.blocks.table_blocks import ITEM_BYTES, blocks_of
from shoal.wire.parameter_messages import UNIT_BLOCKS
from shoal.wire.tables import RuleSpec, TableSpec, TensorSpec
from support.model_tables import language_model, table_of

tensors = st.builds(
    TensorSpec,
    name=st.just("t"),
    shape=st.tuples(st.integers(0, 5000)),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    optimizer=st.integers(0, 1),
    group=st.integers(0, 1),
)


@st.composite
def parts(draw: st.DrawFn) -> tuple[TableSpec, tuple[int, ...]]:
    table = table_of(draw(st.lists(tensors, max_size=12)))
    chosen = [number for number in range(len(blocks_of(table))) if draw(st.booleans())]
    return table, part_order(table, chosen)


@given(part=parts())
def test_a_part_is_its_blocks_one_after_another_aligned_to_their_elements(
    part: tuple[TableSpec, tuple[int, ...]],
) -> None:
    table, numbers = part
    blocks = [blocks_of(table)[number] for number in numbers]
    layout = PartLayout(table, numbers)
    assert layout.size == sum(block.size for block in blocks)
    assert layout.offset(len(blocks)) == layout.size
    for index, block in enumerate(blocks):
        assert layout.offset(index + 1) - layout.offset(index) == block.size
        assert layout.offset(index) % block.item_bytes == 0


@given(part=parts())
def test_units_cover_the_part_and_each_is_of_one_kind(part: tuple[TableSpec, tuple[int, ...]]) -> None:
    table, numbers = part
    layout = PartLayout(table, numbers)
    assert [unit.first for unit in layout.units] == [0, *(unit.last for unit in layout.units)][:-1] or not numbers
    assert sum(unit.size for unit in layout.units) == layout.size
    for place, unit in enumerate(layout.units):
        assert (unit.start, unit.stop) == (layout.offset(unit.first), layout.offset(unit.last))
        kinds = {
            (block.dtype, block.optimizer, block.group)
            for block in (blocks_of(table)[number] for number in numbers[unit.first : unit.last])
        }
        assert kinds == {(unit.dtype, unit.optimizer, unit.group)}
        assert all(layout.unit_of(index) == place for index in range(unit.first, unit.last))


def test_large_parts_are_cut_into_units_of_about_four_megabytes() -> None:
    table = table_of([TensorSpec(name="t", shape=(25_000_000,), dtype="float32")])
    layout = PartLayout(table, part_order(table, range(len(blocks_of(table)))))
    assert all(UNIT_BYTES - table.block_bytes < unit.size <= UNIT_BYTES for unit in layout.units[:-1])


def test_lists_out_of_order_with_repeats_or_unknown_blocks_are_refused() -> None:
    table = language_model()
    for wrong in ((1, 0), (3, 3), (0, 10**6), (-1, 2)):
        with pytest.raises(WireError, match="key list"):
            PartLayout(table, wrong)
    with pytest.raises(IndexError):
        PartLayout(table, (0, 1)).unit_of(2)


def test_very_many_small_blocks_are_in_several_units() -> None:
    tensors = tuple(TensorSpec(name=str(number), shape=(), dtype="float32") for number in range(UNIT_BLOCKS + 5))
    table = TableSpec(kind="dense", tensors=tensors, rules=(RuleSpec("SGD", ({"lr": 0.1},)),), block_bytes=4096)
    layout = PartLayout(table, range(len(tensors)))
    assert [(unit.first, unit.last) for unit in layout.units] == [(0, UNIT_BLOCKS), (UNIT_BLOCKS, UNIT_BLOCKS + 5)]
