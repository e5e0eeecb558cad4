"""Which places are filled again, and when."""

from __future__ import annotations

import pytest

from shoal.launching.supervision.places import PAUSES, FilledPlace, WorkerPlaces


def replaced(places: WorkerPlaces, worker: int, by: int, now: float) -> float:
    """A worker is killed and the next one started; returns how long that had to wait."""
    places.exited(worker, -9, "was killed by SIGKILL", now)
    due = places.next_due
    assert due is not None
    assert places.take_due(due) == 1
    assert places.give(by) == FilledPlace(by, 1, f"worker {worker} was killed by SIGKILL")
    return due - now


def test_pauses_grow_while_replacements_come_to_nothing_and_only_then() -> None:
    places = WorkerPlaces(2)
    assert replaced(places, 1, by=2, now=0.0) == PAUSES[0]
    waits = [replaced(places, worker, by=worker + 1, now=10.0 * worker) for worker in range(2, 9)]
    assert waits == [*PAUSES[1:], *([PAUSES[-1]] * 3)]
    places.has_stepped(9)
    assert replaced(places, 9, by=10, now=100.0) == PAUSES[0]


def test_nothing_is_asked_for_before_it_is_due() -> None:
    places = WorkerPlaces(2)
    replaced(places, 1, by=2, now=0.0)
    places.exited(2, 1, "exited with code 1", 1.0)
    assert places.take_due(1.0 + PAUSES[1] / 2) == 0
    assert places.take_due(1.0 + PAUSES[1]) == 1
    assert places.take_due(100.0) == 0, "once is enough"
    places.ask_again(101.0)
    assert places.take_due(101.0) == 1


def test_a_number_that_nobody_needs_any_more_is_left_alone() -> None:
    places = WorkerPlaces(2)
    places.exited(1, 5, "exited with code 5", 0.0)
    assert places.take_due(0.0) == 1
    places.has_left(1, is_handover=False, now=0.1)
    assert places.give(2) is None
    assert not places.is_filling


def test_many_places_are_filled_at_once_each_with_its_own_number() -> None:
    places = WorkerPlaces(4)
    for worker in (0, 2, 3):
        places.exited(worker, -9, "was killed by SIGKILL", 0.0)
    assert places.running == {1}
    assert places.take_due(0.0) == 3
    filled = [places.give(worker) for worker in (4, 5, 6)]
    assert [(one.worker, one.place) for one in filled if one is not None] == [(4, 0), (5, 2), (6, 3)]
    assert places.running == {1, 4, 5, 6}


@pytest.mark.parametrize("is_said_first", [True, False])
def test_a_place_whose_processes_are_all_turned_away_is_given_up(is_said_first: bool) -> None:
    """What the coordinator says and what the engine sees come in either order."""
    places = WorkerPlaces(2, most_refusals=3)
    replaced(places, 1, by=2, now=0.0)
    for worker in (2, 3, 4):
        before = places.was_turned_away(worker) if is_said_first else ""
        places.exited(worker, 8, "exited with code 8", 10.0 * worker)
        said = before or ("" if is_said_first else places.was_turned_away(worker))
        assert bool(said) == (worker == 4)
        if worker < 4:
            assert places.take_due(10.0 * worker + PAUSES[-1]) == 1
            assert places.give(worker + 1) is not None
    assert "each of 3 processes started in the place of a lost worker was turned away" in said
    assert not places.is_filling
    assert places.take_due(1000.0) == 0
    # The next place that is vacant gets as many tries.
    places.exited(0, -9, "was killed by SIGKILL", 1000.0)
    assert places.is_filling


def test_a_process_that_steps_gives_its_place_as_many_tries_as_before() -> None:
    places = WorkerPlaces(1, most_refusals=2)
    places.exited(0, -9, "was killed by SIGKILL", 0.0)
    for worker in (1, 3):
        assert places.take_due(1000.0 * worker) == 1
        assert places.give(worker) is not None
        assert places.was_turned_away(worker) == ""
        places.exited(worker, 8, "exited with code 8", 1000.0 * worker)
        assert places.take_due(1500.0 * worker) == 1
        assert places.give(worker + 1) is not None
        places.has_stepped(worker + 1)
        places.exited(worker + 1, -9, "was killed by SIGKILL", 1500.0 * worker)
    assert places.is_filling


def test_a_worker_that_somebody_else_started_has_no_place_to_give_up() -> None:
    places = WorkerPlaces(1, most_refusals=1)
    assert places.was_turned_away(7) == ""
    assert places.running == {0}


def test_a_blow_to_several_replacements_makes_the_pause_longer_once() -> None:
    places = WorkerPlaces(3)
    for blow in range(3):
        now, numbers = 10.0 * blow, range(3 * blow, 3 * blow + 3)
        for worker in numbers:
            places.exited(worker, -9, "was killed by SIGKILL", now)
        assert places.next_due == now + PAUSES[blow]
        assert places.take_due(now + PAUSES[blow]) == 3
        assert all(places.give(worker + 3) is not None for worker in numbers)
