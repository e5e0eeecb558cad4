"""How the torch backend fails: fast, with names, and without leaving anything behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch.distributed as dist

from support import torch_failures
from support.torch_failures import Raised
from support.torch_ranks import ranks, run_ranks

HOST = socket.gethostname()
HOWS = ["receive", *(pytest.param(how, marks=pytest.mark.long) for how in ("collective", "asynchronous", "barrier"))]


@pytest.mark.parametrize(
    ("action", "machines"),
    [
        ("_reduce", ()),
        ("_reduce_by_future", (1, 1, 1)),
        ("_train", ()),
        ("_receive", ()),
        pytest.param("_reduce", (2, 1), marks=pytest.mark.long),
        pytest.param("_reduce_later", (), marks=pytest.mark.long),
        pytest.param("_reduce_large", (), marks=pytest.mark.long),
        pytest.param("_receive", (1, 1, 1), marks=pytest.mark.long),
    ],
)
def test_survivors_name_the_killed_rank(action: str, machines: tuple[int, ...]) -> None:
    with ranks(torch_failures.until_it_fails, 3, action, machines=machines) as running:
        assert [running.said(rank) for rank in range(3)] == ["ready"] * 3
        process = running.processes[1].pid
        running.kill(1)
        for first, later in running.results([0, 2]):
            assert isinstance(first, Raised) and first.kind in ("DistBackendError", "RuntimeError"), first
            assert "rank 1" in first.text and f"process {process} on {HOST}" in first.text, first.text
            assert "operation" in first.text or "receive 0 from rank 1" in first.text, first.text
            assert isinstance(later, Raised) and "rank 1" in later.text, later


@pytest.mark.parametrize("machines", [(), pytest.param((1, 1), marks=pytest.mark.long)])
@pytest.mark.parametrize("mistake", torch_failures.MISTAKES)
def test_ranks_that_do_different_things_are_told_so(mistake: str, machines: tuple[int, ...]) -> None:
    found = run_ranks(torch_failures.make_a_mistake, 2, mistake, machines=machines)
    told = [one.text for one in found if one is not None]
    assert any("rank 0" in text and "rank 1" in text for text in told), told


def test_wrong_calls_are_refused_and_the_group_goes_on() -> None:
    for found in run_ranks(torch_failures.wrong_calls, 2):
        assert [one.kind if one else None for one in found] == ["WrongCall"] * 5, found


@pytest.mark.parametrize("how", HOWS)
def test_a_timeout_names_the_operation_and_who_is_missing(how: str) -> None:
    first, _, third = run_ranks(torch_failures.one_does_not_come, 3, how)
    for found in (first, third):  # one of them may have heard it from the other
        assert isinstance(found, Raised) and found.kind == "DistBackendError", found
        assert "rank 1" in found.text and ("operation" in found.text or "receive 0" in found.text), found.text
    assert any("its timeout of" in found.text for found in (first, third)), (first, third)


def test_a_monitored_barrier_names_who_is_missing_and_leaves_the_group_usable() -> None:
    first, _, third = run_ranks(torch_failures.one_does_not_come, 3, "monitored")
    assert "Rank 1 failed to pass monitoredBarrier" in first.text
    assert "Rank 2 successfully reached monitoredBarrier" in third.text


def test_a_rank_that_never_comes_is_named_when_the_group_forms() -> None:
    first, _, third = run_ranks(torch_failures.one_is_missing_at_the_start, 3, init=False)
    for rank, found in ((0, first), (2, third)):
        assert f"rank {rank} of 3 waited 1 s for rank 1 to join the group" in found.text, found.text


def test_what_an_earlier_attempt_left_in_the_store_does_no_harm() -> None:
    assert run_ranks(torch_failures.stale_store, 2, init=False) == [2.0, 2.0]


def test_a_forked_child_neither_uses_nor_disturbs_the_group() -> None:
    assert run_ranks(torch_failures.fork_in_the_middle, 2) == [2.0, 2.0]


def test_an_abort_from_another_thread_ends_what_is_under_way_everywhere() -> None:
    with ranks(torch_failures.abort_from_another_thread, 2) as running:
        first, second = running.results()
    assert isinstance(first, Raised) and "aborted" in first.text
    assert isinstance(second, Raised) and "rank 0" in second.text


def check_recreations(times: int) -> None:
    for found in run_ranks(torch_failures.recreate, 2, times, init=False):
        before, after = found["threads"]
        assert after <= before, found
        before, after = found["descriptors"]
        assert after <= before, found
        before, after = found["keys"]
        assert after <= before + 2, found  # what the last group holds while it lives
        before, after = found["kilobytes"]
        assert after <= before + 20_000, found


@pytest.mark.long
def test_groups_made_again_and_again_leave_nothing_behind() -> None:
    check_recreations(20)


@pytest.mark.long
def test_a_thousand_groups_leave_nothing_behind() -> None:
    check_recreations(1000)


@pytest.mark.long
@pytest.mark.parametrize("machines", [(), (1, 1, 1)])
def test_a_stopped_rank_is_named_within_the_heartbeat_limit(machines: tuple[int, ...]) -> None:
    with ranks(torch_failures.stop_oneself, 3, machines=machines) as running:
        assert running.said(1) == "stopping"
        found: list[Any] = running.results([0, 2])
        running.kill(1, signal.SIGCONT)
    for one in found:
        assert isinstance(one, Raised) and "rank 1" in one.text, one


SCRIPT = """
    import sys, torch, torch.distributed as dist
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("shoal", store=store, rank=rank, world_size=2)
    dist.new_group([0, 1])
    tensor = torch.ones(100)
    dist.all_reduce(tensor, async_op=True).wait()
    work = dist.all_reduce(tensor, async_op=True)
    dist.isend(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    work.wait()
    {}
    print(tensor[0].item())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "ending", ["pass", "sys.exit(0)", "dist.destroy_process_group()", "dist.irecv(tensor, 1 - rank)"]
)
def test_a_script_may_end_as_it_likes(ending: str) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = textwrap.dedent(SCRIPT).format(ending)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(store.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (0, "")
