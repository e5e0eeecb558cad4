"""How many strangers a process holds: by number, by time, and by the descriptors that are left."""

from __future__ import annotations

import heapq
import resource

from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.connection import strangers
from shoal.transport.connection.strangers import FEWEST, MOST, RESERVE, SECONDS, Strangers


class Process:
    """Descriptors as the kernel gives them out."""

    def __init__(self, limit: int, others: int) -> None:
        self.strangers: Strangers[int] = Strangers(lambda: limit)  # their descriptors
        self._free = list(range(others, limit))
        self._limit = limit

    @property
    def in_use(self) -> int:
        return self._limit - len(self._free)

    def accept(self) -> None:
        descriptor = heapq.heappop(self._free)
        for gone in self.strangers.enter(descriptor, descriptor, 0.0):
            heapq.heappush(self._free, gone)

    def members(self, count: int) -> None:
        """So many of the strangers turn out to hold the token."""
        for stranger in tuple(self.strangers)[:count]:
            self.strangers.settle(stranger)


def many() -> int:
    return 100_000


def test_beyond_the_number_the_one_that_came_first_goes() -> None:
    known: Strangers[int] = Strangers(many)
    for number in range(MOST):
        assert known.enter(number, 10 + number, 0.0) == []
    assert known.enter(MOST, 300, 0.0) == [0]
    known.settle(1)
    assert known.enter(MOST + 1, 300, 0.0) == []
    assert known.enter(MOST + 2, 300, 0.0) == [2]
    assert len(known) == MOST


def test_who_is_there_for_too_long_goes_and_who_has_proven_itself_does_not() -> None:
    known: Strangers[str] = Strangers(many)
    assert known.next_due is None
    known.enter("first", 5, 1.0)
    known.enter("second", 6, 2.0)
    known.enter("third", 7, 3.0)
    assert known.next_due == 1.0 + SECONDS
    known.settle("second")
    assert known.overdue(SECONDS) == []
    assert known.overdue(1.0 + SECONDS) == ["first"]
    assert known.overdue(3.0 + SECONDS) == ["third"]
    assert known.next_due is None


def test_strangers_leave_descriptors_for_others() -> None:
    """However many come: descriptors of those that are closed are given out again, lowest first."""
    process = Process(limit=256, others=20)
    for _ in range(10_000):
        process.accept()
        assert process.in_use <= 256 - RESERVE
    assert len(process.strangers) == 256 - RESERVE - 20
    process.members(100)
    for _ in range(1000):
        process.accept()
    assert process.in_use <= 256 - RESERVE
    assert len(process.strangers) == 256 - RESERVE - 120


def test_where_members_have_taken_nearly_all_a_few_may_still_come() -> None:
    known: Strangers[int] = Strangers(lambda: 256)
    for number in range(100):
        known.enter(number, 250, 0.0)
    assert list(known) == list(range(100 - FEWEST, 100))


def test_when_there_is_no_descriptor_at_all_the_oldest_makes_room() -> None:
    known: Strangers[str] = Strangers(many)
    assert known.make_room() == []
    known.enter("first", 5, 1.0)
    known.enter("second", 5, 1.0)
    assert known.make_room() == ["first"]
    assert list(known) == ["second"]


@given(
    st.integers(16, 4096),
    st.lists(st.tuples(st.sampled_from(["enter", "settle", "overdue", "make_room"]), st.integers(0, 4096))),
)
def test_nobody_is_closed_twice_or_forgotten(limit: int, calls: list[tuple[str, int]]) -> None:
    known: Strangers[int] = Strangers(lambda: limit)
    there: set[int] = set()
    for number, (call, value) in enumerate(calls):
        if call == "enter":
            there.add(number)
            gone = known.enter(number, value % limit, float(number))
            assert number not in gone, "whoever comes has its chance"
        elif call == "settle":
            known.settle(value)
            there.discard(value)
            gone = []
        else:
            gone = known.overdue(float(number)) if call == "overdue" else known.make_room()
        assert len(set(gone)) == len(gone)
        assert set(gone) <= there
        there -= set(gone)
        assert set(known) == there
        assert len(known) <= MOST


def test_the_limit_is_the_processs_own_and_can_be_raised_to_what_the_user_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert strangers.descriptor_limit() == 512
        strangers.raise_descriptor_limit()
        assert strangers.descriptor_limit() == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
