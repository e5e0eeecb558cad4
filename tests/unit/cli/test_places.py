"""Which places are filled again, and when."""

from __future__ import annotations

from shoal.cli.places import PAUSES, Filled, Places


def replaced(places: Places, worker: int, by: int, now: float) -> float:
    """A worker is killed and the next one started; returns how long that had to wait."""
    places.exited(worker, -9, "was killed by SIGKILL", now)
    due = places.next_due
    assert due is not None
    assert places.take_due(due) == 1
    assert places.give(by) == Filled(by, 1, f"worker {worker} was killed by SIGKILL")
    return due - now


def test_pauses_grow_while_replacements_come_to_nothing_and_only_then() -> None:
    places = Places(2)
    assert replaced(places, 1, by=2, now=0.0) == PAUSES[0]
    waits = [replaced(places, worker, by=worker + 1, now=10.0 * worker) for worker in range(2, 9)]
    assert waits == [*PAUSES[1:], *([PAUSES[-1]] * 3)]
    places.has_stepped(9)
    assert replaced(places, 9, by=10, now=100.0) == PAUSES[0]


def test_nothing_is_asked_for_before_it_is_due() -> None:
    places = Places(2)
    replaced(places, 1, by=2, now=0.0)
    places.exited(2, 1, "exited with code 1", 1.0)
    assert places.take_due(1.0 + PAUSES[1] / 2) == 0
    assert places.take_due(1.0 + PAUSES[1]) == 1
    assert places.take_due(100.0) == 0, "once is enough"
    places.ask_again(101.0)
    assert places.take_due(101.0) == 1


def test_a_number_that_nobody_needs_any_more_is_left_alone() -> None:
    places = Places(2)
    places.exited(1, 5, "exited with code 5", 0.0)
    assert places.take_due(0.0) == 1
    places.has_left(1, is_handover=False, now=0.1)
    assert places.give(2) is None
    assert not places.is_filling


def test_many_places_are_filled_at_once_each_with_its_own_number() -> None:
    places = Places(4)
    for worker in (0, 2, 3):
        places.exited(worker, -9, "was killed by SIGKILL", 0.0)
    assert places.running == {1}
    assert places.take_due(0.0) == 3
    filled = [places.give(worker) for worker in (4, 5, 6)]
    assert [(one.worker, one.place) for one in filled if one is not None] == [(4, 0), (5, 2), (6, 3)]
    assert places.running == {1, 4, 5, 6}


def test_a_blow_to_several_replacements_makes_the_pause_longer_once() -> None:
    places = Places(3)
    for blow in range(3):
        now, numbers = 10.0 * blow, range(3 * blow, 3 * blow + 3)
        for worker in numbers:
            places.exited(worker, -9, "was killed by SIGKILL", now)
        assert places.next_due == now + PAUSES[blow]
        assert places.take_due(now + PAUSES[blow]) == 3
        assert all(places.give(worker + 3) is not None for worker in numbers)
