"""How groups fail: at once, with the name of who or what made them, over each transport and schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from shoal.codecs.identity import Identity
from shoal.collectives import texts
from shoal.collectives.group import Pending, Reduction
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import Aborted, PeerLost, UsageError, WorkersDisagree
from support.collectives import GROUP_KINDS, groups, in_threads

Start = Callable[[ThreadedGroup], Pending]
LARGE = 2_000_000  # elements: `auto` takes a ring


@pytest.fixture(params=GROUP_KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


def outcomes(made: list[ThreadedGroup], *starts: Start) -> list[BaseException | None]:
    """What each rank's own operation ended with."""
    started = [start(group) for group, start in zip(made, starts, strict=True)]
    return in_threads(*(pending.wait for pending in started))


def test_abort_wakes_a_blocked_operation_and_keeps_its_reason(kind: tuple[str, str]) -> None:
    with groups(kind[0], 3, kind[1]) as made:
        blocked = made[0].all_reduce(torch.ones(10), label="nobody comes")
        queued = made[0].all_reduce(torch.ones(10), label="nor here")
        other = made[1].all_reduce(torch.ones(10), label="nobody comes")
        time.sleep(0.05)
        made[0].abort("worker 7 died")
        for pending in (blocked, queued, made[0].broadcast(torch.ones(1), 0, label="later")):
            with pytest.raises(Aborted, match="worker 7 died"):
                pending.wait()
        with pytest.raises(PeerLost) as error:
            other.wait()
        assert error.value.peer == 0


def test_a_rank_that_one_rank_alone_has_found_to_be_lost_is_named_by_all(kind: tuple[str, str]) -> None:
    """As where a rank does not answer the one that asks first, or dies on the machine of one of them."""
    with groups(kind[0], 4, kind[1]) as made:
        waiting = [made[rank].all_reduce(torch.ones(10), label="gradients") for rank in (0, 2, 3)]
        made[0].lose(1, "rank 1 has not answered for 5 s")
        for error in in_threads(*(pending.wait for pending in waiting)):
            assert isinstance(error, PeerLost)
            assert error.peer == 1, str(error)


def test_the_first_failure_is_what_every_later_operation_raises(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        made[1].abort("stands for a death")
        failures = []
        for number in range(3):
            with pytest.raises(PeerLost) as error:
                made[0].all_reduce(torch.ones(5), label=f"{number}").wait()
            failures.append(error.value)
        assert failures[0] is failures[1] is failures[2]


def test_a_group_that_is_aborted_before_its_first_operation_fails_its_peers(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        made[1].abort("changed its mind")
        with pytest.raises(PeerLost):
            made[0].all_reduce(torch.ones(5), label="alone").wait()


def test_a_strided_tensor_is_not_touched_by_an_operation_that_fails(kind: tuple[str, str]) -> None:
    with groups(kind[0], 3, kind[1]) as made:
        base = torch.ones(1000, 10)
        pending = made[0].all_reduce(base.t(), label="half done")
        made[1].all_reduce(torch.ones(10, 1000), label="half done")
        time.sleep(0.05)
        made[0].abort("in the middle")
        with pytest.raises(Aborted):
            pending.wait()
        assert (base == 1).all()


def test_closing_waits_for_what_was_started(kind: tuple[str, str]) -> None:
    with groups(kind[0], 3, kind[1]) as made:
        tensors = [torch.ones(LARGE // 4) for _ in made]
        for group in made:
            group.all_reduce(tensors[group.rank], label="last")
        in_threads(*(group.close for group in made))
        assert all((tensor == 3).all() for tensor in tensors)
        with pytest.raises(Aborted, match="closed"):
            made[0].all_reduce(tensors[0], label="too late").wait()


def test_ranks_that_leave_early_do_not_disturb_those_still_in_the_last_operation(kind: tuple[str, str]) -> None:
    """The source of a broadcast is done first and leaves while others still pass its data on."""
    with groups(kind[0], 5, kind[1]) as made:
        tensors = [torch.full((LARGE,), float(rank)) for rank in range(5)]

        def take_part(rank: int) -> None:
            time.sleep(0.03 * rank)
            made[rank].broadcast(tensors[rank], 0, label="last").wait()
            made[rank].close()

        results = in_threads(*(lambda rank=rank: take_part(rank) for rank in range(5)))
        assert results == [None] * 5
        assert all((tensor == 0).all() for tensor in tensors)


def _disagree(made: list[ThreadedGroup], *starts: Start) -> str:
    """Nobody succeeds, nobody waits forever, and somebody says what the difference is."""
    results = outcomes(made, *starts)
    assert all(isinstance(result, WorkersDisagree | PeerLost) for result in results)
    texts = [str(result) for result in results if isinstance(result, WorkersDisagree)]
    assert texts
    return texts[0]


@pytest.mark.parametrize(
    ("other", "quoted"),
    [
        (lambda group: group.all_reduce(torch.ones(10), label="loss"), "'loss'"),
        (lambda group: group.all_reduce(torch.ones(11), label="gradients"), "11 float32"),
        (lambda group: group.all_reduce(torch.ones(10).double(), label="gradients"), "10 float64"),
        (lambda group: group.all_reduce(torch.ones(0), label="gradients"), "sum of 0 float32"),
        (lambda group: group.all_reduce(torch.ones(10), label="gradients", reduction=Reduction.MAX), "max of 10"),
        (lambda group: group.broadcast(torch.ones(10), 0, label="gradients"), "broadcast 'gradients'"),
    ],
    ids=["label", "elements", "dtype", "nothing", "reduction", "kind"],
)
def test_two_ranks_that_differ_both_learn_how(kind: tuple[str, str], other: Start, quoted: str) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        text = _disagree(made, lambda group: group.all_reduce(torch.ones(10), label="gradients"), other)
        # Labels that differ say enough; behind equal ones the rest is told.
        mine = "'gradients'" if quoted == "'loss'" else "all-reduce 'gradients' (operation 0: sum of 10 float32)"
        assert mine in text
        assert quoted in text
        assert "rank 0" in text
        assert "rank 1" in text


def test_a_source_that_may_be_done_before_anybody_disagrees_learns_it_next(kind: tuple[str, str]) -> None:
    """Over some transports a source need not wait for anybody; over others it does, and learns it at once."""
    with groups(kind[0], 2, kind[1]) as made:
        made[1].broadcast(torch.ones(10), 1, label="weights")
        with pytest.raises(WorkersDisagree, match="'weights'"):
            made[0].all_reduce(torch.ones(10), label="gradients").wait()
        with pytest.raises((WorkersDisagree, PeerLost)):
            made[1].all_reduce(torch.ones(10), label="gradients").wait()


def test_a_rank_that_is_late_is_waited_for(kind: tuple[str, str]) -> None:
    """Longer than it takes until the others look around and tell each other: that alone is no disagreement."""
    with groups(kind[0], 3, kind[1]) as made:
        for number in range(2):
            tensors = [torch.ones(10) for _ in made]
            early = [group.all_reduce(tensors[group.rank], label=f"{number}") for group in made[1:]]
            time.sleep(0.0 if number else 0.7)  # what was told in the first operation is still unread in the second
            made[0].all_reduce(tensors[0], label=f"{number}").wait()
            for pending in early:
                pending.wait()
            assert all((tensor == 3).all() for tensor in tensors)


@pytest.mark.parametrize("odd", range(4))
def test_one_rank_in_another_operation_never_leaves_the_others_waiting(kind: tuple[str, str], odd: int) -> None:
    """A small operation may run as a tree where the others run a ring: they do not even listen to each other."""
    with groups(kind[0], 4, kind[1]) as made:
        starts: list[Start] = [lambda group: group.all_reduce(torch.ones(LARGE), label="gradients")] * 4
        starts[odd] = lambda group: group.all_reduce(torch.ones(1), label="mean of loss")
        text = _disagree(made, *starts)
        assert "'gradients'" in text
        assert "'mean of loss'" in text


def test_shapes_that_differ_in_a_gather_are_named(kind: tuple[str, str]) -> None:
    """The elements are as many in all, but not for each rank."""
    with groups(kind[0], 2, kind[1]) as made:
        text = _disagree(
            made,
            lambda group: group.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2), label="parts"),
            lambda group: group.all_gather([torch.ones(3), torch.ones(2)], torch.ones(2), label="parts"),
        )
        assert "8 bytes" in text
        assert "12 bytes" in text or "parts" in text


def test_a_send_of_another_size_is_named(kind: tuple[str, str]) -> None:
    with groups(kind[0], 2, kind[1]) as made:
        made[0].send(torch.ones(3), 1, label="rows")
        with pytest.raises(WorkersDisagree, match=r"2 float32.*rank 0.*3 float32"):
            made[1].receive(torch.ones(2), 0, label="rows").wait()


def test_only_sums_of_floating_point_numbers_can_be_encoded() -> None:
    with groups("in-process", 2) as made:
        with pytest.raises(UsageError, match=texts.only_sums("largest", "encoded")):
            made[0].all_reduce(torch.ones(3), label="largest", reduction=Reduction.MAX, key="gradients")
        with pytest.raises(UsageError, match=texts.only_sums("counts", "encoded")):
            made[0].all_reduce(torch.ones(3, dtype=torch.int64), label="counts", key="gradients")


def test_a_group_of_one_needs_no_transport_and_no_thread() -> None:
    before = set(threading.enumerate())
    group = ThreadedGroup.over(None, 1, "auto", Identity())
    tensor = torch.ones(3)
    gathered = [torch.zeros(3)]
    group.all_reduce(tensor, label="sum").wait()
    group.broadcast(tensor, 0, label="copy").wait()
    group.all_gather(gathered, tensor, label="gather").wait()
    group.reduce_scatter(tensor, [torch.full((3,), 5.0)], label="scatter").wait()
    assert set(threading.enumerate()) == before
    assert (tensor == 5).all()
    assert (gathered[0] == 1).all()
    group.abort("enough")
    with pytest.raises(Aborted, match="enough"):
        group.all_reduce(tensor, label="later").wait()
    group.close()
