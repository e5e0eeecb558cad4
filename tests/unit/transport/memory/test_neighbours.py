"""Who shares a machine is found out by trying, and agreed by all; a team notices who left, and why."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import Aborted, PeerLost
from shoal.transport.memory.neighbours import Neighbourhood, form, partition
from shoal.transport.memory.team import Team, TeamLimits, is_behind
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.transport.mesh.mesh_exchange import exchange_over
from support.collectives import in_threads, succeed
from support.memory_groups import neighbourhoods


def hood_of(size: int) -> list[Neighbourhood]:
    return neighbourhoods(list(in_process_meshes(size)), [list(range(size))])


def teams_of(size: int) -> list[Team]:
    teams = [hood.team for hood in hood_of(size)]
    assert all(team is not None for team in teams)
    return [team for team in teams if team is not None]


def close(teams: list[Team]) -> None:
    for team in teams:
        team.close()
        team.close()


def test_ranks_of_one_process_share_its_machine_and_may_read_its_memory() -> None:
    hoods = hood_of(3)
    for rank, hood in enumerate(hoods):
        assert hood.hosts == ((0, 1, 2),)
        assert hood.team is not None
        assert (hood.team.rank, hood.team.size) == (rank, 3)
        assert hood.reads_memory
        hood.team.close()


def test_a_group_of_one_has_no_team() -> None:
    mesh = in_process_meshes(1)[0]
    hood = form(exchange_over(mesh, 1), 0, 1)
    assert (hood.hosts, hood.team) == (((0,),), None)


@given(some.integers(1, 12), some.data())
def test_every_rank_is_in_one_place_with_others_that_it_sees(size: int, data: some.DataObject) -> None:
    seen = [{rank, *data.draw(some.sets(some.integers(0, size - 1)))} for rank in range(size)]
    hosts = partition([sorted(one) for one in seen])
    assert sorted(rank for host in hosts for rank in host) == list(range(size))
    for host in hosts:
        assert all(other in seen[rank] for rank in host for other in host)


def open_now() -> int:
    """Descriptors, and arenas that are mapped."""
    return len(list(Path("/proc/self/fd").iterdir())) + Path("/proc/self/maps").read_text().count("memfd:shoal")


def test_nothing_stays_open_after_many_teams() -> None:
    close(teams_of(2))
    before = open_now()
    for _ in range(30):
        close(teams_of(2))
    assert open_now() == before


def test_a_process_that_ends_after_its_last_word_is_named_by_its_rank_in_the_group() -> None:
    """Rank 0 is on another machine. Rank 2 says that all is well and dies before it is watched."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def exchange_there(data: bytes) -> list[bytes]:
        theirs.send(data)
        return list(theirs.recv())

    def exchange(data: bytes) -> list[bytes]:
        said = [elsewhere.pop(0), data, ours.recv()]
        if elsewhere:
            ours.send(said)
        else:
            process.kill()
            process.join()
        return said

    before = open_now()
    process = context.Process(target=lambda: form(exchange_there, 2, 3))
    process.start()
    stranger = {"offer": None, "parent": 1, "has_native": False, "address": 0}
    elsewhere = [msgspec.msgpack.encode(stranger), b"", msgspec.msgpack.encode({"visible": [0], "readable": False})]
    with pytest.raises(PeerLost, match="rank 2 is gone: its process ended without a word") as error:
        form(exchange, 1, 3)
    assert error.value.peer == 2
    process.close()
    assert open_now() == before
    ours.close()
    theirs.close()


def test_who_is_behind_can_be_asked_when_all_is_over() -> None:
    """As one does that watches the clock for many groups, in a thread of its own."""
    teams = teams_of(3)
    teams[0].signal()
    teams[2].signal()
    assert [team.behind() for team in teams] == [[1], [], [1]]
    close(teams)
    assert [team.behind() for team in teams] == [[], [], []]


def test_a_phase_is_waited_for_and_seen() -> None:
    teams = teams_of(2)

    def later() -> None:
        time.sleep(0.05)
        teams[1].signal()

    succeed(later, lambda: teams[0].await_phase(1, 1))
    assert teams[0].idle_seconds > 0.0
    close(teams)


def test_phases_wrap_around() -> None:
    assert is_behind(2**32 - 1, 0)
    assert not is_behind(0, 2**32 - 1)
    assert not is_behind(5, 5)


def test_giving_up_wakes_this_rank_and_its_peers_and_says_whom_it_blames() -> None:
    teams = teams_of(3)

    def give_up() -> None:
        time.sleep(0.05)
        teams[0].give_up("the next generation forms", blamed=2)

    _, own, other = in_threads(give_up, lambda: teams[0].await_phase(1, 1), lambda: teams[1].await_phase(0, 1))
    assert isinstance(own, Aborted)
    assert str(own) == "the next generation forms"
    assert isinstance(other, PeerLost)
    assert other.peer == 2
    close(teams)


def test_a_rank_that_finished_is_missed_only_by_those_who_need_it() -> None:
    teams = teams_of(3)
    teams[2].close()
    teams[1].signal()
    teams[0].await_phase(1, 1)
    with pytest.raises(PeerLost, match="rank 2 left: it had finished"):
        teams[0].await_phase(2, 1)
    close(teams)


SLEEPER = """
import json, sys
from shoal.transport.memory.arena import Arena
from shoal.transport.memory.team import ARENA_BYTES
import msgspec
own = Arena.create(ARENA_BYTES)
print(json.dumps([own.offer.process, own.offer.descriptor, own.offer.nonce.hex()]), flush=True)
sys.stdin.read()
"""


class Sleeper:
    """A process that has an arena and never says anything."""

    def __init__(self) -> None:
        import json

        from shoal.transport.memory.arena import Arena, Offer, PeerArena
        from shoal.transport.memory.team import ARENA_BYTES

        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        process, descriptor, nonce = json.loads(self.process.stdout.readline())
        peer = PeerArena.open(Offer(process, descriptor, ARENA_BYTES, bytes.fromhex(nonce)))
        self.team = Team(0, Arena.create(ARENA_BYTES), [None, peer], [os.getpid(), process])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.team.close()


def test_a_dead_process_is_named() -> None:
    sleeper = Sleeper()
    os.kill(sleeper.process.pid, signal.SIGKILL)
    with pytest.raises(PeerLost, match="rank 1 is gone: its process ended without a word"):
        sleeper.team.await_phase(1, 1)
    sleeper.end()


def test_a_stopped_process_is_named_after_the_limit_and_a_late_one_after_another() -> None:
    sleeper = Sleeper()
    sleeper.team.limits = TeamLimits(stopped=0.3)
    os.kill(sleeper.process.pid, signal.SIGSTOP)
    with pytest.raises(PeerLost, match=r"rank 1 is stopped: process \d+ has been so for 0.3 s"):
        sleeper.team.await_phase(1, 1)
    os.kill(sleeper.process.pid, signal.SIGCONT)
    sleeper.team.limits = TeamLimits(late=0.2)
    with pytest.raises(PeerLost, match=r"rank 1 did not come within 0.2 s"):
        sleeper.team.await_phase(1, 1)
    sleeper.end()
