"""How mailboxes fail: at once, with the name of who or what made them, over each lane, between threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.errors import Aborted, PeerLost
from support.collectives import PATIENCE, in_threads, succeed
from support.mailboxes import LANES, mailboxes

TESTS = Path(__file__).parents[1]


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


def test_abort_wakes_everything_that_waits_and_keeps_its_reason(lane: str) -> None:
    with mailboxes(lane, 3) as made:
        own = made[0]
        waiting = [
            own.receive(torch.zeros(4), 1),
            own.receive(torch.zeros(4), None, tag=1),
            own.send(torch.zeros(2_000_000), 2),
        ]

        def abort() -> None:
            time.sleep(0.05)
            own.abort("worker 7 died")
            own.abort("another reason")

        _, *errors = in_threads(abort, *(pending.wait for pending in waiting))
        later = in_threads(own.send(torch.zeros(1), 1).wait, own.receive(torch.zeros(1), None).wait)
        for error in (*errors, *later):
            assert isinstance(error, Aborted)
            assert str(error) == "worker 7 died"


def test_a_rank_that_gives_up_is_named_by_all_who_wait_for_anybody(lane: str) -> None:
    with mailboxes(lane, 4) as made:
        waiting = [made[1].receive(torch.zeros(4), 0), made[2].receive(torch.zeros(4), None), made[3].receive(
            torch.zeros(4), 1, tag=8)]  # fmt: skip
        made[0].abort("enough")
        for pending, error in zip(waiting, in_threads(*(pending.wait for pending in waiting)), strict=True):
            assert isinstance(error, PeerLost)
            assert error.peer == 0, str(error)
            assert str(error).endswith(f"noticed in {pending.label}")


def test_the_blamed_rank_is_named_instead_of_the_one_that_gave_up(lane: str) -> None:
    with mailboxes(lane, 3) as made:
        waiting = made[2].receive(torch.zeros(4), 0)
        made[0].abort("rank 1 hangs", blamed=1)
        with pytest.raises(
            PeerLost, match="rank 1 is gone, says rank 0; noticed in receive 0 from rank 0, tag 0"
        ) as error:
            waiting.wait()
        assert error.value.peer == 1


def test_what_a_rank_sent_before_it_left_is_still_received(lane: str) -> None:
    with mailboxes(lane, 3) as made:
        awaited = torch.zeros(4)
        pending = made[0].receive(awaited, 2, tag=1)
        made[2].send(torch.full((4,), 1.0), 0, tag=1).wait()
        made[2].send(torch.full((4,), 2.0), 0, tag=2).wait()
        made[2].close()
        assert pending.wait(30.0)
        later = torch.zeros(4)
        assert made[0].receive(later, 2, tag=2).wait(30.0)
        assert (awaited.tolist(), later.tolist()) == ([1.0] * 4, [2.0] * 4)


def test_a_rank_that_finished_and_left_fails_those_alone_who_need_it(lane: str) -> None:
    with mailboxes(lane, 3) as made:
        needing = [
            made[0].receive(torch.zeros(4), 2),
            made[0].send(torch.zeros(1_000_000), 2),
        ]
        tensor = torch.zeros(4)
        others = [made[0].receive(tensor, 1), made[0].receive(torch.zeros(1), None, tag=1)]
        made[2].close()
        for error in in_threads(*(pending.wait for pending in needing)):
            assert isinstance(error, PeerLost)
            assert "rank 2 left: it had finished" in str(error)
            assert error.peer == 2
        for late in (made[0].receive(torch.zeros(4), 2), made[0].send(torch.zeros(4), 2)):
            with pytest.raises(PeerLost, match="rank 2 left"):
                late.wait()
        made[1].send(torch.ones(4), 0).wait()
        assert others[0].wait(30.0)
        assert tensor.tolist() == [1.0] * 4
        made[1].close()
        with pytest.raises(PeerLost, match="noticed in receive 2 from any rank, tag 1"):
            others[1].wait()
        with pytest.raises(PeerLost, match="left"):
            made[0].receive(torch.zeros(1), None).wait()


def test_closing_fails_what_is_under_way_and_later_calls(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        own = made[0]
        waiting = [
            own.receive(torch.zeros(4), 1),
            own.send(torch.zeros(1_000_000), 1),
            own.receive(torch.zeros(1), None),
        ]

        def close() -> None:
            time.sleep(0.05)
            own.close()
            own.close()

        _, *errors = in_threads(close, *(pending.wait for pending in waiting))
        errors += in_threads(own.send(torch.zeros(1), 1).wait, own.receive(torch.zeros(1), 1).wait)
        assert {str(error) for error in errors} == {"the mailbox is closed"}


def test_an_offer_of_a_rank_that_left_fails_its_receiver(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        offered = made[0].send(torch.zeros(1_000_000), 1)
        assert not made[1].receive(torch.zeros(1), 0, tag=9).wait(0.05)  # the offer has arrived and waits
        made[0].close()
        with pytest.raises(Aborted):
            offered.wait()
        with pytest.raises(PeerLost, match="rank 0 left"):
            made[1].receive(torch.zeros(1_000_000), 0).wait()


def test_a_rank_may_be_aborted_while_messages_fly_and_nobody_hangs(lane: str) -> None:
    with mailboxes(lane, 3) as made:

        def exchange(rank: int) -> None:
            small, large, other = torch.zeros(4), torch.zeros(500_000), torch.zeros(500_000)
            while True:
                peer = (rank + 1) % 3
                started = [made[rank].send(small, peer), made[rank].send(large, peer, tag=1)]
                started += [made[rank].receive(torch.zeros(4), None), made[rank].receive(other, None, tag=1)]
                for pending in started:
                    pending.wait()

        def abort() -> None:
            time.sleep(0.2)
            made[1].abort("now")

        _, *errors = in_threads(abort, *(lambda rank=rank: exchange(rank) for rank in range(3)))
        assert isinstance(errors[1], Aborted)
        assert [error.peer for error in (errors[0], errors[2])] == [1, 1]


def unknown_threads() -> set[int]:
    """Those of libraries, and those of Python's that have just ended."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()} - {
        thread.native_id for thread in threading.enumerate()
    }


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_mailboxes_that_come_and_go_leave_nothing_behind(lane: str, rounds: int) -> None:
    def round_trip(made: list[Mailbox]) -> None:
        tensor = torch.zeros(4)
        pending = made[1].receive(tensor, 0)
        made[0].send(torch.ones(4), 1)
        pending.wait()

    process = psutil.Process()
    others = unknown_threads()

    def held() -> tuple[int, int, int]:
        gc.collect()
        limit = time.monotonic() + PATIENCE
        while unknown_threads() - others and time.monotonic() < limit:
            time.sleep(0.001)  # one that was joined is still seen for a moment
        return process.num_fds(), process.num_threads(), len(process.memory_maps(grouped=False))

    for number in range(rounds):
        with mailboxes(lane, 2) as made:
            round_trip(made)
        if number == 20:
            before = held()
    after = held()
    assert after[:2] == before[:2]
    assert after[2] <= before[2] + 10  # the allocator's own


def test_a_forked_child_takes_no_part(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        pending = made[0].receive(torch.zeros(4), 1)
        descriptors = psutil.Process().num_fds()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                pending.wait()
            except Aborted:
                made[0].close()
                made[1].abort("from a child")
                code = 0 if psutil.Process().num_fds() < descriptors - 4 else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        succeed(lambda: made[1].send(torch.ones(4), 0).wait(), pending.wait)


def test_a_process_that_ends_with_things_under_way_ends_normally() -> None:
    script = f"""
import torch
from support.mailboxes import mailboxes
contexts = [mailboxes(lane, 2) for lane in {LANES}]
kept = []
for context in contexts:
    made = context.__enter__()
    kept += [made, made[0].receive(torch.zeros(4), 1), made[1].send(torch.zeros(1_000_000), 0, tag=1)]
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
