"""Schedules, replayed on symbols: each contribution once, one order of summing, no deadlock, few bytes.

The replay itself fails where ranks wait for each other, where a frame is left over, and where a block is changed that
was sent and may still be on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.schedules.double_tree import double_tree_all_reduce, places
from shoal.collectives.schedules.halving import doubling_all_gather, halving_all_reduce, halving_reduce_scatter
from shoal.collectives.schedules.hierarchical import Hosts, hierarchical_all_reduce, hierarchical_broadcast, host_of
from shoal.collectives.schedules.ring import ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce_scatter
from shoal.collectives.schedules.schedule import Action, Program, ProgramBuilder, boundaries, refined
from shoal.collectives.schedules.tree import chain_all_reduce, place_of, tree_all_reduce, tree_broadcast
from support.collectives import ranks_in, replay
from support.examples import scaled

sizes = some.integers(1, 33)
pipes = some.integers(1, 9)
orders = sizes.flatmap(lambda size: some.permutations(range(size))).map(tuple)


@some.composite
def partitions(draw: some.DrawFn) -> Hosts:
    """Ranks 0..n-1 in any order, dealt to any number of hosts."""
    order = draw(orders)
    cuts = draw(some.sets(some.integers(1, len(order) - 1))) if len(order) > 1 else set()
    edges = [0, *sorted(cuts), len(order)]
    return tuple(order[start:stop] for start, stop in pairwise(edges))


FLAT: dict[str, Callable[[int, int, int], Program]] = {
    "ring": lambda size, rank, _: ring_all_reduce(size, rank),
    "tree": lambda size, rank, pipe: tree_all_reduce(size, rank, segments=pipe),
    "double-tree": lambda size, rank, pipe: double_tree_all_reduce(size, rank, segments=pipe),
    "halving-doubling": lambda size, rank, _: halving_all_reduce(size, rank),
    "chain": lambda size, rank, pipe: chain_all_reduce(size, rank, segments=pipe),
}
flat = pytest.mark.parametrize("build", FLAT.values(), ids=FLAT)


def _sent(program: Program) -> int:
    """Blocks, each as often as it goes out."""
    return sum(len(program.blocks(send.segment)) for step in program.rounds for send in step.sends)


def _check_all_reduce(programs: list[Program]) -> None:
    state = replay(programs)
    for block in range(programs[0].segments):
        sums = {repr(own[block]) for own in state}
        assert len(sums) == 1, "ranks summed in different orders"
        assert ranks_in(state[0][block]) == list(range(len(programs)))


@flat
def test_all_reduce_sums_every_rank_once_in_one_order(build: Callable[[int, int, int], Program]) -> None:
    @settings(max_examples=scaled(60), deadline=None)
    @given(sizes, pipes)
    def check(size: int, pipe: int) -> None:
        _check_all_reduce([build(size, rank, pipe) for rank in range(size)])

    check()


@settings(max_examples=scaled(40), deadline=None)
@given(sizes, pipes)
def test_a_chain_sums_in_the_order_of_the_ranks(size: int, segments: int) -> None:
    programs = [chain_all_reduce(size, rank, segments=segments) for rank in range(size)]
    one_by_one = reduce(lambda left, right: (left, right), range(size))
    assert replay(programs) == [[one_by_one] * segments] * size
    assert max(_sent(program) for program in programs) <= 2 * segments


@settings(max_examples=scaled(40), deadline=None)
@given(orders)
def test_a_ring_in_any_order_sums_every_rank_once(order: tuple[int, ...]) -> None:
    programs = [ring_all_reduce(len(order), rank, order=order) for rank in range(len(order))]
    _check_all_reduce(programs)
    for place, rank in enumerate(order):
        peers = {send.peer for step in programs[rank].rounds for send in step.sends}
        assert peers <= {order[(place + 1) % len(order)]}


@flat
def test_hierarchical_all_reduce_sums_every_rank_once_in_one_order(build: Callable[[int, int, int], Program]) -> None:
    @settings(max_examples=scaled(40), deadline=None)
    @given(partitions(), pipes, some.integers(1, 4))
    def check(hosts: Hosts, pipe: int, pieces: int) -> None:
        programs = []
        for rank in range(sum(map(len, hosts))):
            between = build(len(hosts), host_of(hosts, rank), pipe)
            programs.append(hierarchical_all_reduce(hosts, rank, between=between, pieces=pieces))
        _check_all_reduce(programs)
        _check_one_flow(hosts, programs, speakers=[host[0] for host in hosts])

    check()


def _check_one_flow(hosts: Hosts, programs: list[Program], speakers: list[int]) -> None:
    """Only the rank that speaks for a host has to do with other hosts."""
    for rank, program in enumerate(programs):
        for step in program.rounds:
            for each in (*step.sends, *step.receives):
                if host_of(hosts, rank) != host_of(hosts, each.peer):
                    assert rank in speakers and each.peer in speakers


@settings(deadline=None)
@given(sizes)
def test_ring_sends_to_the_right_and_takes_from_the_left_only(size: int) -> None:
    for build in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        for rank in range(size):
            for step in build(size, rank).rounds:
                assert {send.peer for send in step.sends} <= {(rank + 1) % size}
                assert {receive.peer for receive in step.receives} <= {(rank - 1) % size}


@settings(deadline=None)
@given(sizes, some.integers(0, 10_000))
def test_ring_sends_no_more_than_its_share_and_one_chunk(size: int, elements: int) -> None:
    chunk = -(-elements // size)
    for rank in range(size):
        program = ring_all_reduce(size, rank)
        bounds = program.bounds(elements)
        sent = sum(bounds[send.segment][1] - bounds[send.segment][0] for step in program.rounds for send in step.sends)
        assert sent * size <= 2 * (size - 1) * elements + chunk * size


@settings(deadline=None)
@given(sizes)
def test_halving_sends_as_little_as_a_ring_in_logarithmic_rounds(size: int) -> None:
    rounds = (size - 1).bit_length()
    for rank in range(size):
        program = halving_all_reduce(size, rank)
        assert _sent(program) == 2 * (size - 1)
        sends = [step for step in program.rounds if step.sends]
        assert len(sends) == 2 * rounds
        assert sum(len(step.sends) for step in sends) <= 4 * rounds  # a frame, or two where its blocks go past the end


@settings(deadline=None)
@given(sizes, pipes)
def test_nobody_sends_more_than_twice_the_tensor_in_a_double_tree(size: int, segments: int) -> None:
    for rank in range(size):
        assert _sent(double_tree_all_reduce(size, rank, segments=segments)) <= 2 * (2 * segments)


@settings(deadline=None)
@given(sizes)
def test_no_rank_passes_data_on_in_both_trees(size: int) -> None:
    for rank in range(size):
        first, second = places(size, rank)
        assert not (first.children and second.children)


@pytest.mark.parametrize("build", [ring_reduce_scatter, halving_reduce_scatter])
def test_reduce_scatter_leaves_the_whole_sum_of_a_segment_on_its_rank(build: Callable[[int, int], Program]) -> None:
    for size in range(1, 34):
        state = replay([build(size, rank) for rank in range(size)])
        for rank, own in enumerate(state):
            assert ranks_in(own[rank]) == list(range(size))


@pytest.mark.parametrize("build", [ring_all_gather, doubling_all_gather])
def test_all_gather_brings_every_segment_everywhere(build: Callable[[int, int], Program]) -> None:
    for size in range(1, 34):
        for own in replay([build(size, rank) for rank in range(size)]):
            assert own == list(range(size))


@settings(max_examples=scaled(40), deadline=None)
@given(orders)
def test_segments_stay_with_their_ranks_in_a_ring_of_any_order(order: tuple[int, ...]) -> None:
    size = len(order)
    scattered = replay([ring_reduce_scatter(size, rank, order=order) for rank in range(size)])
    for rank, own in enumerate(scattered):
        assert ranks_in(own[rank]) == list(range(size))
    for own in replay([ring_all_gather(size, rank, order=order) for rank in range(size)]):
        assert own == list(range(size))


@settings(deadline=None)
@given(partitions(), pipes, some.data())
def test_broadcast_brings_the_sources_segments_everywhere(hosts: Hosts, segments: int, data: some.DataObject) -> None:
    order = tuple(rank for host in hosts for rank in host)
    size = len(order)
    source = data.draw(some.integers(0, size - 1))
    for programs in (
        [ring_broadcast(size, rank, source=source, segments=segments) for rank in range(size)],
        [ring_broadcast(size, rank, source=source, segments=segments, order=order) for rank in range(size)],
        [tree_broadcast(size, rank, source=source, segments=segments) for rank in range(size)],
    ):
        assert replay(programs) == [[source] * segments] * size
    levels = [hierarchical_broadcast(hosts, rank, source=source, segments=segments) for rank in range(size)]
    assert replay(levels) == [[source] * segments] * size
    _check_one_flow(hosts, levels, speakers=[source, *(host[0] for host in hosts if source not in host)])


@settings(deadline=None)
@given(sizes, some.data())
def test_a_tree_has_one_root_and_logarithmic_depth(size: int, data: some.DataObject) -> None:
    root = data.draw(some.integers(0, size - 1))
    places = [place_of(size, rank, root=root) for rank in range(size)]
    assert [rank for rank, place in enumerate(places) if place.parent is None] == [root]
    for rank, place in enumerate(places):
        assert 2**place.depth <= size
        assert len(place.children) <= 2
        for child in place.children:
            assert places[child].parent == rank
            assert places[child].depth == place.depth + 1


@settings(deadline=None)
@given(some.integers(0, 10_000), some.integers(1, 64))
def test_segments_cover_everything_once_and_differ_by_one_element_at_most(elements: int, segments: int) -> None:
    bounds = boundaries(elements, segments)
    assert [index for start, stop in bounds for index in range(start, stop)] == list(range(elements))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1


@settings(deadline=None)
@given(sizes, some.integers(1, 5), some.integers(0, 10_000))
def test_a_run_lies_where_its_blocks_lie_also_in_finer_cuts(size: int, pieces: int, elements: int) -> None:
    program = halving_all_reduce(size, size // 2)
    cuts = boundaries(elements, size)
    finer = refined(program, pieces)
    assert finer.segments == size * pieces
    for segment in range(len(program.runs)):
        blocks = program.blocks(segment)
        expected = (cuts[blocks[0]][0], cuts[blocks[-1]][1])
        assert program.bounds(elements)[segment] == finer.bounds(elements)[segment] == expected


def test_the_replay_notices_a_block_that_changes_on_its_way() -> None:
    """The other rank's frame was posted before it can have read ours."""
    first = ProgramBuilder()
    first.send(0, 1, 0)
    first.receive(Action.COPY, 0, 1, 0)
    second = ProgramBuilder()
    second.send(0, 0, 0)
    second.receive(Action.REDUCE, 0, 0, 0)
    with pytest.raises(AssertionError, match="on its way"):
        replay([first.build(1), second.build(1)])


def test_the_replay_notices_ranks_that_wait_for_each_other() -> None:
    programs = []
    for rank in range(2):
        builder = ProgramBuilder()
        builder.receive(Action.COPY, 0, 1 - rank, 0)
        builder.send(0, 1 - rank, 0)
        programs.append(builder.build(1))
    with pytest.raises(AssertionError, match="wait for each other"):
        replay(programs)
