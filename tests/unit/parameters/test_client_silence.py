"""A worker's client and servers that are stopped: they keep their connections, and are lost by their silence alone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from shoal.errors import ServersLost
from shoal.parameters.client.parameter_client import ClientConfig, EnrolTerms, ParameterClient
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Address
from shoal.wire.parameter_messages import Echo
from shoal.wire.tables import RuleSpec, TableSpec, TensorSpec
from support.stand_in_servers import JOB, TOKEN, StandIns

TABLE = TableSpec(
    kind="dense",
    tensors=(TensorSpec("weight", (2000, 17), "float32"),),
    rules=(RuleSpec(name="SGD", groups=({"lr": 0.5},)),),
    block_bytes=4096,
)
VALUES = {"weight": torch.arange(34_000.0).reshape(2000, 17)}


@contextlib.contextmanager
def begun() -> Iterator[tuple[StandIns, ParameterClient, int]]:
    """Servers that answer no pull for now, a client that has assigned values, and the number of that entry."""
    with contextlib.closing(StandIns(2, 1)) as servers:
        servers.answers_pulls = False
        config = ClientConfig(keeper=servers.keeper, key=TOKEN, job=JOB, worker=0, lost_after=0.5, silence_limit=1.0)
        with contextlib.closing(ParameterClient(config)) as client:
            client.define(TABLE)
            client.enrol(EnrolTerms(1, (0,), "asynchronous"))
            yield servers, client, client.assign(VALUES, None, 0)


def test_servers_that_say_nothing_are_lost() -> None:
    with begun() as (servers, client, number):
        servers.is_silent = True
        with pytest.raises(ServersLost, match="it has said nothing for 1 s"):
            client.pull(number, ()).wait_all({"weight": torch.empty_like(VALUES["weight"])})


def test_servers_that_are_slow_and_say_that_they_are_there_are_waited_for() -> None:
    with begun() as (servers, client, number):
        pull = client.pull(number, ())
        limit = time.monotonic() + 30
        while sum(isinstance(note, Echo) for note in tuple(servers.heard)) < 6:  # for three times half of the limit
            assert time.monotonic() < limit
            time.sleep(0.01)
        servers.answers_pulls = True
        client.call("servers look at what waits")
        found = {"weight": torch.empty_like(VALUES["weight"])}
        pull.wait_all(found)
        assert torch.equal(found["weight"], VALUES["weight"])


def test_a_worker_that_has_had_no_use_for_servers_for_long_has_lost_none() -> None:
    """It waited to be let in for longer than servers are waited for; nobody had told it of a table to ask them for."""
    with contextlib.closing(StandIns(2, 1)) as servers:
        config = ClientConfig(keeper=servers.keeper, key=TOKEN, job=JOB, worker=0, lost_after=0.5)
        with contextlib.closing(ParameterClient(config)) as client:
            time.sleep(1.0)
            assert len(client.await_map().servers) == 2
            client.define(TABLE)
            client.enrol(EnrolTerms(1, (0,), "asynchronous"))


def test_servers_are_not_given_up_while_others_are_being_started() -> None:
    """All were killed at once, and on a busy machine replacements take longer to start than servers are waited for."""
    space = SpaceTerms(job=JOB, key=TOKEN)
    keeper = Keeper(KeeperConfig(Address("127.0.0.1", 0), "the group's token", 1, spaces=(space,)), lambda _: None)
    keeper.announce(1)
    keeper.start()
    config = ClientConfig(keeper=keeper.address, key=TOKEN, job=JOB, worker=0, lost_after=0.5)
    with contextlib.closing(keeper), contextlib.closing(ParameterClient(config)) as client:
        given_up = threading.Event()

        def wait() -> None:
            with contextlib.suppress(ServersLost):
                client.await_map()
            given_up.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not given_up.wait(2.0), "the worker gave up although a server was on its way"
        keeper.announce(0)
        assert given_up.wait(30)
        waiter.join()
