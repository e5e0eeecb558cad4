"""Placements under maps: who is written to, who is read from, what moves, what is lost."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.parameters.blocks.part_layout import part_order
from shoal.parameters.blocks.placement import Placement, keys_digest
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.values import ServerMap
from support.model_tables import language_model, server_map

TABLE = language_model(width=32, layers=2)
BLOCKS = range(len(blocks_of(TABLE)))
numbers = st.sets(st.integers(0, 9), min_size=1, max_size=6).map(sorted)


@st.composite
def maps(draw: st.DrawFn) -> ServerMap:
    before, after = draw(numbers), draw(numbers)
    dead = draw(st.sets(st.sampled_from(before), max_size=len(before) - 1))
    after = [number for number in after if number not in dead] or [11]
    living = sorted((set(before) - dead) | set(after))
    return server_map(living, before, after, draw(st.integers(1, 3)))


def settled_of(servers: ServerMap) -> Placement:
    """When all blocks have moved."""
    return Placement(TABLE, msgspec.structs.replace(servers, before=servers.after))


@settings(deadline=None)
@given(servers=maps())
def test_written_are_all_who_hold_or_will_hold_a_block(servers: ServerMap) -> None:
    placement, settled = Placement(TABLE, servers), settled_of(servers)
    living = {server.number for server in servers.servers}
    for block in BLOCKS:
        writers = placement.writers(block)
        assert set(placement.readers(block)) <= set(writers) <= living
        assert len(set(writers)) == len(writers)
        assert placement.reader(block) == next(iter(placement.readers(block)), None)
        assert (placement.reader(block) is None) == (block in placement.lost)
        assert placement.answerer(block) == (writers[0] if block in placement.lost else placement.reader(block))
    for number in living:
        keys = placement.keys(number)
        assert set(keys) == {block for block in BLOCKS if number in placement.writers(block)}
        assert keys == part_order(TABLE, keys)
        assert set(settled.keys(number)) <= set(keys)


@settings(deadline=None)
@given(servers=maps())
def test_when_all_is_fetched_or_assigned_every_holder_to_be_has_its_blocks(servers: ServerMap) -> None:
    placement, settled = Placement(TABLE, servers), settled_of(servers)
    for number in servers.after:
        stays = set(settled.keys(number))
        has = {block for block in BLOCKS if number in placement.readers(block)}
        fetched = placement.fetches(number)
        for source, blocks in fetched.items():
            assert source != number
            assert all(placement.reader(block) == source for block in blocks)
        got = [block for blocks in fetched.values() for block in blocks]
        assert not has & set(got)
        assert has | set(got) | set(placement.lost_to(number)) >= stays
        assert set(got) <= stays


def test_a_settled_map_moves_nothing_and_with_two_replicas_one_death_loses_nothing() -> None:
    settled = Placement(TABLE, server_map([0, 1, 2], [0, 1, 2], [0, 1, 2], replicas=2))
    assert [settled.fetches(number) for number in range(3)] == [{}, {}, {}]
    assert settled.lost == ()
    one_dead = Placement(TABLE, server_map([0, 2], [0, 1, 2], [0, 2], replicas=2))
    assert one_dead.lost == ()
    assert set(one_dead.fetches(0)) == {2}
    assert set(one_dead.fetches(2)) == {0}
    assert one_dead.keys(1) == ()
    assert one_dead.keys(0) == one_dead.keys(2) == part_order(TABLE, BLOCKS)


def test_without_replicas_a_death_loses_what_the_dead_server_held() -> None:
    placement = Placement(TABLE, server_map([0, 2], [0, 1, 2], [0, 2]))
    held = Placement(TABLE, server_map([0, 1, 2], [0, 1, 2], [0, 1, 2])).keys(1)
    assert placement.lost == tuple(sorted(held))
    assert sorted((*placement.lost_to(0), *placement.lost_to(2))) == sorted(held)


def test_key_lists_of_other_tables_or_blocks_have_other_names() -> None:
    names = {keys_digest(table, blocks) for table in (b"a", b"b") for blocks in ((), (1, 2), (2, 1), (1,), (256,))}
    assert len(names) == 10
    assert keys_digest(b"a", (1, 2)) == keys_digest(b"a", [1, 2])
