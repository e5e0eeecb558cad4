"""How a worker cuts tensors for servers: everything goes to every holder once, and is read from one place."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.parameters.blocks.table_blocks import ITEM_BYTES, blocks_of
from shoal.parameters.client.client_layout import ClientLayout, Stretch, slot_capacity
from shoal.values import ServerMap
from shoal.wire.tables import TableSpec, TensorSpec
from support.examples import scaled
from support.model_tables import language_model, server_map, table_of


@some.composite
def tables(draw: some.DrawFn) -> TableSpec:
    count = draw(some.integers(1, 8))
    shapes = [draw(some.sampled_from([(), (0,), (1,), (7, 3), (1024,), (100, 31), (3000, 2)])) for _ in range(count)]
    kinds = [draw(some.sampled_from(["float32", "bfloat16", "float64"])) for _ in range(count)]
    groups = [draw(some.integers(0, 1)) for _ in range(count)]
    return table_of(
        [
            TensorSpec(name=f"t{number}", shape=shape, dtype=kind, group=group)
            for number, (shape, kind, group) in enumerate(zip(shapes, kinds, groups, strict=True))
        ]
    )


@some.composite
def maps(draw: some.DrawFn) -> ServerMap:
    """Settled or moving, with or without the dead."""
    before = draw(some.sets(some.integers(0, 6), min_size=1, max_size=5))
    after = draw(some.sets(some.integers(0, 8), min_size=1, max_size=5))
    dead = draw(some.sets(some.sampled_from(sorted(before)))) - after
    living = sorted((before | after) - dead)
    return server_map(living, sorted(before), sorted(after), draw(some.integers(1, 3)))


def covered(stretches: list[Stretch], server: int | None = None) -> list[int]:
    """Elements, in order, of the stretches on one server or on all."""
    chosen = [each for each in stretches if server in (None, each.server)]
    return sorted(element for each in chosen for element in range(each.start, each.stop))


@settings(max_examples=scaled(60), deadline=None)
@given(tables(), maps())
def test_every_element_goes_to_each_holder_once_and_is_read_from_one(table: TableSpec, servers: ServerMap) -> None:
    layout = ClientLayout(table, servers)
    for number, spec in enumerate(table.tensors):
        elements = list(range(math.prod(spec.shape)))
        assert covered(layout.reads[number]) == elements
        for server in layout.parts:
            held = [
                element
                for block in blocks_of(table)
                if block.tensor == number and server in layout.placement.writers(block.number)
                for element in range(block.start, block.stop)
            ]
            assert covered(layout.writes[number], server) == held


@settings(max_examples=scaled(60), deadline=None)
@given(tables(), maps())
def test_stretches_lie_in_their_units_and_slots_have_room(table: TableSpec, servers: ServerMap) -> None:
    layout = ClientLayout(table, servers)
    assert layout.slot_bytes <= slot_capacity(table, servers.replicas)
    filled = {server: [0] * len(part.units) for server, part in layout.parts.items()}
    for number, spec in enumerate(table.tensors):
        for each in layout.writes[number]:
            unit = layout.parts[each.server].units[each.piece]
            assert unit.start <= each.place
            assert each.place + each.size <= unit.stop
            assert each.size == (each.stop - each.start) * ITEM_BYTES[spec.dtype]
            assert each.place % ITEM_BYTES[spec.dtype] == 0
            filled[each.server][each.piece] += each.size
        for each in layout.reads[number]:
            part, piece = layout.parts[each.server], layout.pieces[each.server][each.piece]
            assert part.unit_of(piece.first) == part.unit_of(piece.last - 1) == piece.unit
            assert part.offset(piece.first) <= each.place
            assert each.place + each.size <= part.offset(piece.last)
    assert filled == {server: [unit.size for unit in part.units] for server, part in layout.parts.items()}


def test_a_worker_of_one_server_copies_each_tensor_in_one_go() -> None:
    layout = ClientLayout(language_model(), server_map([0], [0], [0]))
    assert [len(stretches) for stretches in layout.writes] == [1] * len(layout.table.tensors)
    assert [len(stretches) for stretches in layout.reads] == [1] * len(layout.table.tensors)
