"""A job's name space in a group that somebody else keeps: a real keeper, servers that only join."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import events
from shoal.disk import texts
from shoal.errors import AddressUnavailable, Refused, UsageError
from shoal.job_config import JobConfig
from shoal.launching.servers.borrowed_servers import BorrowedServers, BorrowedServersConfig
from shoal.launching.servers.job_servers import check_group, space_name
from shoal.launching.servers.server_side import Seen
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.values import Address
from shoal.wire.texts import MISSING
from support.launcher import write_token
from support.servers import StandInServer

TOKEN = "the group's"
MINE = SpaceTerms(job="mine", key="the job's", quota=10**9)


@contextlib.contextmanager
def running_group() -> Iterator[Keeper]:
    config = KeeperConfig(listen=Address("127.0.0.1", 0), token=TOKEN, expected=1, replicas=1)
    keeper = Keeper(config, lambda _: None)
    keeper.start()
    with contextlib.closing(keeper), StandInServer(keeper.address, TOKEN, 0):
        yield keeper


def borrow(keeper: Keeper) -> BorrowedServers:
    return BorrowedServers(BorrowedServersConfig(keeper.address, TOKEN, MINE))


def look_until(servers: BorrowedServers, words: str = "", kind: type[events.Event] | None = None) -> Seen:
    seen = Seen()
    limit = time.monotonic() + 10
    while not (words and any(words in line for line in seen.lines)) and not (
        kind is not None and any(isinstance(event, kind) for event in seen.events)
    ):
        assert time.monotonic() < limit, seen
        more = servers.look(time.monotonic())
        seen.events += more.events
        seen.lines += more.lines
        time.sleep(0.01)
    return seen


def test_the_space_is_there_for_as_long_as_the_job() -> None:
    with running_group() as keeper:
        with contextlib.closing(borrow(keeper)) as servers:
            assert keeper.status().spaces == ("mine",)
            seen = look_until(servers, kind=events.ServersChanged)
            assert [type(event) for event in seen.events] == [events.ServerJoined, events.ServersChanged]
        servers.close()
        assert keeper.status().spaces == ()


def test_the_space_of_a_launcher_that_was_killed_is_taken_over() -> None:
    with running_group() as keeper:
        killed = borrow(keeper)
        with contextlib.closing(borrow(keeper)):
            assert keeper.status().spaces == ("mine",)
        killed.close()


def test_a_group_that_goes_away_is_said_once() -> None:
    with running_group() as keeper:
        servers = borrow(keeper)
    with contextlib.closing(servers):
        seen = look_until(servers, words="does not answer")
        assert len(seen.lines) == 1


def test_another_token_is_refused() -> None:
    with running_group() as keeper, pytest.raises(Refused, match="token"):
        BorrowedServers(BorrowedServersConfig(keeper.address, "wrong", MINE))


def test_a_group_is_tried_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "token"

    def config(address: Address) -> JobConfig:
        settings = ParameterServerSettings(servers=str(address), servers_token=str(file))
        return JobConfig(strategy="parameter-server", strategy_settings=(settings,))

    with running_group() as keeper:
        with pytest.raises(UsageError, match=f"--servers-token .* {MISSING}; {texts.FILE_OF_GROUP}"):
            check_group(config(keeper.address))
        write_token(file, TOKEN)
        check_group(config(keeper.address))
    with pytest.raises(AddressUnavailable, match="no keeper of a server group can be reached"):
        check_group(config(keeper.address))
    check_group(JobConfig())


def test_names_of_run_directories_differ(tmp_path: Path) -> None:
    one, other = space_name(tmp_path / "a" / "run"), space_name(tmp_path / "b" / "run")
    assert one != other
    assert one == space_name(tmp_path / "a" / ".." / "a" / "run")
    assert one.startswith("run-")
