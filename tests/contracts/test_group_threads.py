"""A group used by several threads, and by the callbacks of its own operations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from shoal.collectives.group import Pending
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import Aborted
from support.collectives import IN_MEMORY, PATIENCE, groups, in_threads, succeed


# Threads and callbacks are the group's business, whatever its exchanger: one that waits for bytes, one for memory.
@pytest.fixture(params=[("in-process", "auto"), (IN_MEMORY, "auto")], ids="-".join)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_operations_run_in_the_order_of_their_numbers_whichever_thread_runs_them(kind: tuple[str, str]) -> None:
    """One thread works here, another queues as soon as it sees that the first one has begun, by turns."""
    turns, ran = 30, [[], []]  # type: tuple[int, list[list[int]]]

    def await_count(group: ThreadedGroup, count: int) -> None:
        while group.collectives_started < count and not group.is_failed:
            pass

    def work_here(group: ThreadedGroup) -> None:
        for turn in range(turns):
            await_count(group, 2 * turn)
            group.here.all_reduce(torch.ones(3), label="here")

    def queue(group: ThreadedGroup) -> None:
        last = Pending("nothing")
        for turn in range(turns):
            await_count(group, 2 * turn + 1)
            last = group.all_reduce(torch.ones(5), label="queued")
        last.wait()

    with groups(kind[0], 2, kind[1]) as made:
        for group in made:
            group.brake = lambda operation, own=ran[group.rank]: own.append(operation.sequence)
        succeed(*(lambda group=group, call=call: call(group) for group in made for call in (work_here, queue)))
    assert ran == [list(range(2 * turns))] * 2


def test_a_callback_may_close_the_group(kind: tuple[str, str]) -> None:
    """It runs in the group's own thread, which cannot wait for itself; what was started before is finished."""
    with groups(kind[0], 2, kind[1]) as made:
        closed = [threading.Event() for _ in made]
        sums = [[torch.ones(4), torch.ones(4)] for _ in made]

        def close(group: ThreadedGroup) -> None:
            group.close()
            closed[group.rank].set()

        pending: list[list[Pending]] = []
        holding = threading.Event()
        for group in made:
            group.brake = lambda _: holding.wait(PATIENCE)
        for group in made:
            first, second = (group.all_reduce(tensor, label="sum") for tensor in sums[group.rank])
            first.when_done(lambda group=group: close(group))
            pending.append([first, second])
        holding.set()
        for done in closed:
            assert done.wait(PATIENCE)
        for each in (one for own in pending for one in own):
            assert each.wait(PATIENCE)
        assert all((tensor == 2).all() for own in sums for tensor in own)
        for group in made:
            with pytest.raises(Aborted, match="closed"):
                group.all_reduce(torch.ones(1), label="too late").wait()
            group.close()
            assert group._thread is not None
            group._thread.join(PATIENCE)
            assert not group._thread.is_alive()


def test_a_callback_may_start_an_operation_and_wait_for_it(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        after = [torch.ones(4) for _ in made]
        ended = [threading.Event() for _ in made]

        def go_on(group: ThreadedGroup) -> None:
            group.here.all_reduce(after[group.rank], label="second")
            ended[group.rank].set()

        for group in made:
            group.all_reduce(torch.ones(2), label="first").when_done(lambda group=group: go_on(group))
        assert all(each.wait(PATIENCE) for each in ended)
        assert all((tensor == 2).all() for tensor in after)


def test_threads_that_call_at_once_get_numbers_of_their_own(kind: tuple[str, str]) -> None:
    """What they get cannot be told, as their order is chance; that nothing is lost or done twice can."""
    with groups(kind[0], 2, kind[1]) as made:
        seen: list[list[int]] = [[] for _ in made]
        for group in made:
            group.brake = lambda operation, own=seen[group.rank]: own.append(operation.sequence)

        def call(group: ThreadedGroup, way: int) -> None:
            for _ in range(20):
                tensor = torch.ones(3)
                (group.here if way else group).all_reduce(tensor, label="any").wait()
                assert (tensor == 2).all()

        errors = in_threads(*(lambda group=group, way=way: call(group, way) for group in made for way in range(3)))
        assert errors == [None] * 6
        assert seen == [list(range(60))] * 2
