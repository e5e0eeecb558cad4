"""Leases and sets of positions: each position is free, held by one worker, or used, and only used ones stay so."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.ledger.leases import Leases, open_leases
from shoal.parameters.ledger.ranges import common, merged, total, without
from shoal.wire.tables import LoopTerms, Range

Position = tuple[int, int]

ranges = st.lists(
    st.builds(lambda epoch, start, size: Range(epoch, start, start + size), *(st.integers(0, n) for n in (2, 12, 6))),
    max_size=6,
)


def positions(pieces: list[Range] | tuple[Range, ...]) -> set[Position]:
    return {(piece.epoch, each) for piece in pieces for each in range(piece.start, piece.stop)}


def terms(
    samples: int, epochs: int, update: int, updates: int | None = None, done: tuple[Range, ...] = ()
) -> LoopTerms:
    return LoopTerms(loop=1, first_epoch=0, epochs=epochs, samples=samples, update=update, updates=updates, done=done)


@given(ranges, ranges)
def test_ranges_are_sets(first: list[Range], second: list[Range]) -> None:
    assert positions(merged(first)) == positions(first)
    assert positions(without(first, second)) == positions(first) - positions(second)
    assert positions(common(first, second)) == positions(first) & positions(second)
    tidy = merged([*first, *second])
    assert total(tidy) == len(positions(first) | positions(second))
    assert all(a.epoch < b.epoch or a.stop < b.start for a, b in itertools.pairwise(tidy))


@given(ranges, st.integers(0, 4))
def test_epochs_that_are_used_up_need_not_be_listed(done: list[Range], before: int) -> None:
    whole = tuple(Range(epoch, 0, 12) for epoch in range(before))
    listed = open_leases(terms(12, 4, 1, done=(*whole, *done)))
    named = open_leases(msgspec.structs.replace(terms(12, 4, 1, done=tuple(done)), used_before=before))
    assert (listed.free, listed.returned) == (named.free, named.returned)
    assert (listed.epoch, listed.position) == (named.epoch, named.position)


def test_sets_of_very_many_pieces_take_no_longer_than_their_sorting() -> None:
    """Each of a hundred thousand pieces is compared with a few others: with each other one it would take hours."""
    evens = [Range(0, 2 * each, 2 * each + 1) for each in range(100_000)]
    odds = [Range(0, 2 * each + 1, 2 * each + 2) for each in range(100_000)]
    assert without(evens, odds) == evens
    assert common([*evens, *odds], odds) == odds


class Loop:
    """Carries out random operations and keeps book of its own."""

    def __init__(self, loop: LoopTerms) -> None:
        self.leases: Leases = open_leases(loop)
        self.everything = {(epoch, each) for epoch in range(loop.epochs) for each in range(loop.samples)}
        self.used = positions(loop.done) & self.everything
        self.held: dict[int, list[Range]] = {}

    def lease(self, worker: int, updates: int) -> None:
        piece = self.leases.grant(worker, updates, members=3)
        if piece is None:
            return
        others = set().union(*(positions(pieces) for pieces in self.held.values())) if self.held else set()
        assert piece.size > 0
        assert not positions([piece]) & (self.used | others), "each position has one holder, and is used once"
        assert positions([piece]) <= self.everything
        self.held[worker] = merged([*self.held.get(worker, []), piece])

    def use(self, worker: int, count: int) -> None:
        first = next(iter(self.held.get(worker, [])), None)
        if first is None:
            return
        piece = Range(first.epoch, first.start, min(first.start + count, first.stop))
        assert self.leases.use(worker, [piece])
        assert not self.leases.use(worker, [piece]), "what is used is used for good"
        self.used |= positions([piece])
        self.held[worker] = without(self.held[worker], [piece])

    def check(self) -> None:
        held = {each for pieces in self.held.values() for each in positions(pieces)}
        assert positions([piece for pieces in self.leases.held.values() for piece in pieces]) == held
        assert self.leases.free == len(self.everything) - len(self.used) - len(held)
        frontier = {each for each in self.everything if each < (self.leases.epoch, self.leases.position)}
        assert frontier - positions(self.leases.open) == self.used


operations = st.lists(st.tuples(st.sampled_from(["lease", "use", "back"]), st.integers(0, 2), st.integers(1, 5)))


@given(operations, st.integers(1, 20), st.integers(1, 3), st.integers(1, 4), ranges)
def test_every_position_is_used_once_whatever_workers_do(
    steps: list[tuple[str, int, int]], samples: int, epochs: int, update: int, done: list[Range]
) -> None:
    loop = Loop(terms(samples, epochs, update, done=tuple(done)))
    for what, worker, count in steps:
        if what == "lease":
            loop.lease(worker, count)
        elif what == "use":
            loop.use(worker, count)
        else:
            kept = [Range(piece.epoch, piece.start, piece.start + 1) for piece in loop.held.get(worker, [])[:count]]
            loop.leases.give_back(worker, kept)
            loop.held[worker] = merged(kept)
        loop.check()
    loop.leases.give_back_others([0])
    loop.held = {0: loop.held.get(0, [])}
    while not loop.leases.is_over:
        loop.lease(0, 2)
        loop.use(0, samples)
        loop.check()
    assert loop.used == loop.everything


def test_a_push_cannot_use_what_its_worker_does_not_hold() -> None:
    leases = open_leases(terms(100, 1, 10))
    first = leases.grant(1, 1, members=2)
    assert first == Range(0, 0, 10)
    assert not leases.use(2, [first]), "somebody else's"
    assert not leases.use(1, [Range(0, 0, 11)]), "more than it has"
    assert not leases.use(1, [first, Range(0, 3, 4)]), "one twice"
    assert leases.held == {1: [first]}, "a push that is refused changes nothing"
    assert leases.use(1, [first])


def test_pieces_get_smaller_towards_the_end_and_returned_ones_come_first() -> None:
    leases = open_leases(terms(640, 1, 10))
    sizes = []
    while (piece := leases.grant(0, 8, members=4)) is not None:
        sizes.append(piece.size)
    assert sizes[0] == 80
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-8:] == [10] * 8
    leases.give_back(0, [Range(0, 0, 600)])
    assert leases.grant(1, 8, members=4) == Range(0, 600, 610)


def test_epochs_follow_each_other_without_a_barrier() -> None:
    leases = open_leases(terms(30, 2, 20))
    pieces = [leases.grant(worker, 1, members=4) for worker in range(4)]
    assert pieces == [Range(0, 0, 20), Range(0, 20, 30), Range(1, 0, 20), Range(1, 20, 30)]
    assert leases.grant(4, 1, members=4) is None
    assert not leases.is_over, "four leases are open"


def test_a_loop_ends_after_as_many_updates_as_it_was_given() -> None:
    leases = open_leases(terms(1000, 5, 10, updates=5))
    first = leases.grant(0, 4, members=1)
    second = leases.grant(1, 4, members=1)
    assert first == Range(0, 0, 40)
    assert second == Range(0, 40, 50), "one is left"
    assert leases.grant(2, 1, members=1) is None
    leases.give_back(1)
    assert leases.grant(2, 1, members=1) == Range(0, 40, 50), "what was not used may be leased again"
    for start in (0, 10, 20, 30):
        assert leases.use(0, [Range(0, start, start + 10)])
    assert not leases.is_over
    assert leases.use(2, [Range(0, 40, 50)])
    assert leases.is_over


def test_a_loop_without_samples_is_over_at_once() -> None:
    assert open_leases(terms(0, 3, 8)).is_over
    assert open_leases(terms(8, 0, 8)).is_over
    assert open_leases(terms(8, 1, 8, done=(Range(0, 0, 8),))).is_over
