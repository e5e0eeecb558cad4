"""Schedules, replayed on symbols: each contribution once, one order of summing, no deadlock, few bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.ring import ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce_scatter
from shoal.collectives.schedule import Action, Program, boundaries
from shoal.collectives.tree import place_of, tree_all_reduce, tree_broadcast
from support.collectives import ranks_in, replay

sizes = some.integers(1, 33)
pipes = some.integers(1, 9)


def _bytes_sent(program: Program, elements: int) -> int:
    bounds = boundaries(elements, program.segments)
    return sum(bounds[send.segment][1] - bounds[send.segment][0] for step in program.rounds for send in step.sends)


def _check_all_reduce(programs: list[Program]) -> None:
    state = replay(programs)
    for segment in range(programs[0].segments):
        sums = {repr(own[segment]) for own in state}
        assert len(sums) == 1, "ranks summed in different orders"
        assert ranks_in(state[0][segment]) == list(range(len(programs)))


@given(sizes)
def test_ring_all_reduce_sums_every_rank_once_in_one_order(size: int) -> None:
    _check_all_reduce([ring_all_reduce(size, rank) for rank in range(size)])


@given(sizes, pipes)
def test_tree_all_reduce_sums_every_rank_once_in_one_order(size: int, segments: int) -> None:
    _check_all_reduce([tree_all_reduce(size, rank, segments=segments) for rank in range(size)])


@given(sizes)
def test_ring_sends_to_the_right_and_takes_from_the_left_only(size: int) -> None:
    for build in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        for rank in range(size):
            for step in build(size, rank).rounds:
                assert {send.peer for send in step.sends} <= {(rank + 1) % size}
                assert {receive.peer for receive in step.receives} <= {(rank - 1) % size}


@given(sizes, some.integers(0, 10_000))
def test_ring_sends_no_more_than_its_share_and_one_chunk(size: int, elements: int) -> None:
    chunk = -(-elements // size)
    for rank in range(size):
        sent = _bytes_sent(ring_all_reduce(size, rank), elements)
        assert sent * size <= 2 * (size - 1) * elements + chunk * size


@given(sizes)
def test_reduce_scatter_leaves_the_whole_sum_of_a_segment_on_its_rank(size: int) -> None:
    state = replay([ring_reduce_scatter(size, rank) for rank in range(size)])
    for rank, own in enumerate(state):
        assert ranks_in(own[rank]) == list(range(size))


@given(sizes)
def test_all_gather_brings_every_segment_everywhere(size: int) -> None:
    for own in replay([ring_all_gather(size, rank) for rank in range(size)]):
        assert own == list(range(size))


@given(sizes, pipes, some.data())
def test_broadcast_brings_the_sources_segments_everywhere(size: int, segments: int, data: some.DataObject) -> None:
    source = data.draw(some.integers(0, size - 1))
    for build in (ring_broadcast, tree_broadcast):
        programs = [build(size, rank, source=source, segments=segments) for rank in range(size)]
        assert replay(programs) == [[source] * segments] * size


@given(sizes, pipes)
def test_what_was_sent_is_overwritten_only_by_what_came_of_it(size: int, segments: int) -> None:
    """A posted segment may still be on its way: only a copy that contains this rank's part proves that it arrived."""
    for programs in (
        [ring_all_reduce(size, rank) for rank in range(size)],
        [tree_all_reduce(size, rank, segments=segments) for rank in range(size)],
    ):
        for rank, program in enumerate(programs):
            sent: set[int] = set()
            for step in program.rounds:
                sent |= {send.segment for send in step.sends}
                for receive in step.receives:
                    assert receive.action is Action.COPY or receive.segment not in sent, rank


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


@given(some.integers(0, 10_000), some.integers(1, 64))
def test_segments_cover_everything_once_and_differ_by_one_element_at_most(elements: int, segments: int) -> None:
    bounds = boundaries(elements, segments)
    assert [index for start, stop in bounds for index in range(start, stop)] == list(range(elements))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1
