"""Which failures of a script are the same."""

from __future__ import annotations

from shoal.membership.verdicts.failures import Failures, sameness


def test_addresses_and_numbers_do_not_make_two_failures_different() -> None:
    first = "  File 'train.py', line 7\nValueError: worker 1, sample 17 of <D object at 0x7f00aa>"
    second = "  File 'train.py', line 7\nValueError: worker 12, sample 3 of <D object at 0x55ffee99>"
    assert sameness(first) == sameness(second)
    assert sameness(first) != sameness(first.replace("ValueError", "KeyError"))


def test_only_the_same_failure_is_counted_and_earlier_coordinators_count() -> None:
    failures = Failures(3, [sameness("KeyError: 1"), sameness("ValueError: 1")])
    assert not failures.is_too_many(failures.script_failed("KeyError: 2"))
    assert failures.is_too_many(failures.script_failed("KeyError: 3"))
    assert not failures.is_too_many(failures.script_failed("ValueError: 9"))


def test_a_step_in_between_makes_failed_starts_begin_anew() -> None:
    failures = Failures(2)
    assert not failures.is_too_many(failures.start_failed(0, newest=0))
    failures.progressed()
    assert not failures.is_too_many(failures.start_failed(1, newest=1))
    assert failures.is_too_many(failures.start_failed(2, newest=2))


def test_processes_that_were_there_when_a_round_was_counted_belong_to_it() -> None:
    failures = Failures(2)
    assert [failures.start_failed(worker, newest=3) for worker in (2, 0, 3)] == [1, 1, 1]
    assert [failures.start_failed(worker, newest=6) for worker in (5, 1, 6, 4)] == [2, 2, 2, 2]
    assert failures.start_failed(7, newest=7) == 3


def test_going_back_counts_until_a_later_step_is_reached() -> None:
    """Steps up to that one may be taken again, from a checkpoint, before the same code comes again."""
    failures = Failures(3)
    assert [failures.went_back(60), failures.went_back(60)] == [1, 2]
    failures.progressed()
    assert failures.went_back(60) == 3
    assert failures.went_back(90) == 1
