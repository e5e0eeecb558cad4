"""Clocks under a bound: nobody reads too far ahead, nobody waits for a worker without work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.ledger.clocks import Clock, Clocks


def clocks(**counts: int) -> Clocks:
    """All at work."""
    return Clocks({int(name[1:]): Clock(count, True) for name, count in counts.items()})


def test_a_worker_reads_at_most_so_many_clocks_ahead_of_the_slowest() -> None:
    state = clocks(w0=5, w1=3, w2=7)
    assert state.allows(1, 0)
    assert state.allows(0, 2)
    assert not state.allows(0, 1)
    assert not state.allows(2, 3)
    assert state.allows(2, 4)


def test_a_worker_without_work_holds_nobody_up_and_goes_on_from_the_slowest_at_work() -> None:
    state = clocks(w0=9, w1=3, w2=8)
    state.rest(1)
    assert state.allows(0, 1)
    state.work(1)
    assert state.by_worker[1].count == 8
    state.tick(1)
    assert state.by_worker[1].count == 9


def test_with_nobody_at_work_the_first_to_begin_is_not_behind_the_next() -> None:
    state = clocks(w0=9, w1=3)
    state.rest(0)
    state.rest(1)
    state.work(1)
    state.work(0)
    assert state.allows(0, 0)


def test_a_newcomer_starts_at_the_smallest_and_who_left_is_forgotten() -> None:
    state = clocks(w0=9, w1=3, w2=4)
    state.enrol((0, 2, 7))
    assert {worker: clock.count for worker, clock in state.by_worker.items()} == {0: 9, 2: 4, 7: 4}
    assert not state.by_worker[7].is_at_work
    assert not state.allows(0, 4)
    assert state.allows(0, 5)


actions = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["read and push", "rest", "work", "leave and join"])))


@given(actions, st.integers(0, 4))
def test_workers_at_work_never_part_by_more_than_the_bound_and_one_of_them_can_go_on(
    steps: list[tuple[int, str]], bound: int
) -> None:
    state = Clocks()
    members = [0, 1, 2, 3]
    state.enrol(members)
    for index, what in steps:
        worker = members[index]
        before = {each: clock.count for each, clock in state.by_worker.items()}
        if what == "read and push" and state.by_worker[worker].is_at_work and state.allows(worker, bound):
            state.tick(worker)
        elif what == "rest":
            state.rest(worker)
        elif what == "work":
            state.work(worker)
        elif what == "leave and join":
            members[index] = max(members) + 1
            state.enrol(members)
        busy = [clock.count for clock in state.by_worker.values() if clock.is_at_work]
        assert all(clock.count >= before.get(each, 0) for each, clock in state.by_worker.items()), "no clock goes back"
        if busy:
            assert max(busy) - min(busy) <= bound + 1, "who has just pushed is one ahead of what it has read"
            assert any(state.allows(each, 0) for each, clock in state.by_worker.items() if clock.is_at_work)
