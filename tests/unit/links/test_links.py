"""Who measures with whom, what a matrix says of links that were not measured, and rings on given links."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.links.matrix import GAP, UNKNOWN, Hosts, Link, LinkMatrix, completed, uniform
from shoal.links.ring_order import ring_order
from shoal.links.rounds import packed, rounds_of, tournament
from support.examples import scaled

FAST, SLOW = Link(2e-5, 3e-10), Link(1e-3, 1e-8)
links = some.builds(Link, some.floats(1e-6, 1e-1), some.floats(1e-11, 1e-6))


def matrix_of(hosts: Hosts, inside: Link = FAST, between: Link = SLOW) -> LinkMatrix:
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    ranks = range(len(host_of))
    rows = (tuple(inside if host_of[a] == host_of[b] else between for b in ranks) for a in ranks)
    return LinkMatrix(tuple(rows))


@some.composite
def matrices(draw: some.DrawFn) -> LinkMatrix:
    size = draw(some.integers(2, 9))
    return LinkMatrix(tuple(tuple(draw(links) for _ in range(size)) for _ in range(size)))


@settings(deadline=None)
@given(some.integers(1, 40))
def test_a_tournament_has_every_pair_once_and_nobody_twice_in_a_round(size: int) -> None:
    rounds = tournament(range(size))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(size), 2))
    assert len(rounds) <= size
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_with_hosts_one_flow_between_two_of_them_is_measured_and_one_inside_each() -> None:
    rounds = rounds_of(6, ((4, 0, 2), (1, 3), (5,)))
    assert sorted(rounds[0]) == [(0, 4), (1, 3)]
    assert sorted(pair for pairs in rounds[1:] for pair in pairs) == [(1, 4), (1, 5), (4, 5)]


@pytest.mark.parametrize("hosts", [(), tuple((rank, 999 - rank) for rank in range(500))], ids=["ranks", "hosts"])
def test_with_very_many_ranks_only_some_pairs_are_measured(hosts: Hosts) -> None:
    rounds = rounds_of(1000, hosts)
    assert len(rounds) <= 10
    partners = Counter(rank for pairs in rounds for pair in pairs for rank in pair)
    assert max(partners.values()) <= 6
    assert all(partners[host[0]] >= 2 for host in hosts or [(rank,) for rank in range(1000)])


@settings(deadline=None)
@given(some.lists(some.sampled_from(list(combinations(range(9), 2))), unique=True))
def test_packed_pairs_are_all_there_and_nobody_is_twice_in_a_round(pairs: list[tuple[int, int]]) -> None:
    rounds = packed(pairs)
    assert sorted(pair for each in rounds for pair in each) == sorted(pairs)
    for each in rounds:
        ranks = [rank for pair in each for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_a_link_that_was_not_measured_is_taken_for_that_between_the_same_hosts() -> None:
    hosts = ((0, 1), (2, 3))
    inside, between = Link(1e-5, 1e-10), Link(1e-3, 1e-8)
    found = dict.fromkeys(permutations((0, 1), 2), inside) | dict.fromkeys(permutations((0, 2), 2), between)
    matrix = completed(4, found, hosts)
    assert matrix.link(1, 3) == matrix.link(3, 0) == between
    assert matrix.link(1, 0) == inside
    assert matrix.link(2, 3) == between  # nothing was measured there: the slowest at either end


def test_without_hosts_the_slowest_at_either_end_stands_for_what_is_not_known() -> None:
    found = {(0, 1): Link(1e-3, 1e-10), (1, 0): Link(1e-5, 1e-9), (2, 3): Link(1e-5, 1e-10)}
    matrix = completed(5, found)
    assert matrix.link(0, 2) == Link(1e-3, 1e-9)
    assert matrix.link(3, 2) == Link(1e-5, 1e-10)
    assert matrix.link(4, 4) == Link(1e-3, 1e-9)
    assert completed(2, {}).link(0, 1) == UNKNOWN


def test_links_that_differ_by_chance_become_equal_and_others_stay_different() -> None:
    rows = tuple(
        tuple(Link(1e-5 * (1 + 0.1 * abs(a - b)), (1e-8 if 3 in (a, b) else 1e-10) * (1 + 0.1 * a)) for b in range(4))
        for a in range(4)
    )
    levelled = LinkMatrix(rows).levelled()
    assert len({link.latency for link in levelled.links()}) == 1
    assert len({link.per_byte for link in levelled.links()}) == 2
    assert len({levelled.link(a, b).per_byte for a, b in permutations(range(3), 2)}) == 1


@settings(deadline=None)
@given(matrices())
def test_levels_change_no_figure_by_more_than_what_lies_between_without_a_gap(matrix: LinkMatrix) -> None:
    levelled = matrix.levelled()
    for kind in ("latency", "per_byte"):
        before = sorted(getattr(link, kind) for link in matrix.links())
        after = {getattr(link, kind) for link in levelled.links()}
        gaps = sum(b > GAP * a for a, b in pairwise(before))
        assert len(after) == gaps + 1
        assert after <= set(before)


@settings(max_examples=scaled(50), deadline=None)
@given(matrices())
def test_a_ring_holds_every_rank_once_and_is_not_slower_than_that_of_the_ranks(matrix: LinkMatrix) -> None:
    order = ring_order(matrix)
    assert order[0] == 0
    assert sorted(order) == list(range(matrix.size))
    assert _slowest(matrix, order) + _whole(matrix, order) <= 1.01 * (
        _slowest(matrix, range(matrix.size)) + _whole(matrix, range(matrix.size))
    )
    assert ring_order(matrix) == order


def _hops(matrix: LinkMatrix, order: object) -> list[float]:
    ranks = list(order)  # type: ignore[call-overload]  # any ranks in a row
    part = 16 * 1024 * 1024 / len(ranks)
    return [matrix.link(a, b).seconds(part) for a, b in zip(ranks, ranks[1:] + ranks[:1], strict=True)]


def _slowest(matrix: LinkMatrix, order: object) -> float:
    return matrix.size * max(_hops(matrix, order))


def _whole(matrix: LinkMatrix, order: object) -> float:
    return sum(_hops(matrix, order))


@settings(deadline=None)
@given(some.permutations(range(12)), some.integers(2, 6))
def test_a_ring_enters_and_leaves_every_host_once(order: list[int], count: int) -> None:
    hosts = tuple(tuple(order[number::count]) for number in range(count))
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    ring = ring_order(matrix_of(hosts))
    crossings = sum(host_of[a] != host_of[b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))
    ranks = tuple(range(12))
    unchanged = sum(host_of[a] != host_of[b] for a, b in zip(ranks, (*ranks[1:], 0), strict=True))
    assert crossings == count or (ring == ranks and crossings == unchanged)


def test_one_bad_link_is_left_out_of_the_ring() -> None:
    rows = [[FAST] * 6 for _ in range(6)]
    rows[2][3] = rows[3][2] = SLOW
    order = ring_order(LinkMatrix(tuple(map(tuple, rows))))
    assert abs(order.index(2) - order.index(3)) not in (1, 5)


def test_equal_links_leave_the_ranks_in_their_order() -> None:
    assert ring_order(uniform(16, FAST)) == tuple(range(16))


@settings(deadline=None)
@given(matrices(), some.data())
def test_some_ranks_keep_their_links(matrix: LinkMatrix, data: some.DataObject) -> None:
    ranks = data.draw(some.lists(some.integers(0, matrix.size - 1), min_size=1, unique=True))
    part = matrix.among(ranks)
    assert all(part.link(a, b) == matrix.link(ranks[a], ranks[b]) for a in range(part.size) for b in range(part.size))
