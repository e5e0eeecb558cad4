"""What a server may hold counts also when the deaths of others make its part larger."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import ServerRefused
from shoal.parameters.blocks.table_blocks import table_bytes
from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.server_groups import (
    PATIENCE,
    TOKEN,
    Group,
    begin,
    group_of,
    pulled,
    table_for,
    terms_of,
    values_of,
    wait_until,
)

TABLE = table_for("Adam", sizes=(40_000,) * 4)
# Adam keeps three numbers for each parameter. On three servers with two replicas each holds two thirds of that, and
# takes in the first values besides; on two it holds all of it.
LIMIT = table_bytes(TABLE.tensors) * 2.8


def commit(client: ParameterClient, table: TableSpec, seed: int) -> int:
    push = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        push.put(name, gradient)
    answer = client.commit(push, terms_of(table))
    assert isinstance(answer, Committed), answer
    return answer.number


def lose(group: Group, number: int) -> None:
    before = group.maps()
    group.servers[number].stop()
    wait_until(lambda: group.maps() > before, "a map without it")


def refusal_of(client: ParameterClient) -> ServerRefused:
    """What the next pushes come to, which may go by the map before at first."""
    with pytest.raises(ServerRefused) as refused:
        for seed in range(2, 1000):
            commit(client, TABLE, seed)
    return refused.value


@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_part_that_grew_over_the_limit_is_refused_with_its_figures(shares_memory: bool) -> None:
    with group_of(3, 2, memory=int(LIMIT)) as group:
        client = begin(group, TABLE, shares_memory=shares_memory)
        commit(client, TABLE, 1)
        lose(group, 2)
        refusal = refusal_of(client)
        assert refusal.kind == "memory"
        for words in (
            "no room for its part of job job by version 2 of the map (server 2 was lost",
            "it takes 1.8 MiB and the server holds 0.0 MiB of the 1.7 MiB that it may",
            "start more servers, give them more (--server-memory), or use fewer replicas",
        ):
            assert words in str(refusal)
        with pytest.raises(ServerRefused, match="no room"):  # nobody waits in vain, who comes later neither
            group.client(1, shares_memory=shares_memory).define(TABLE)
        wait_until(group.is_settled, "what could be moved has been")
        assert not any(group.has_died(number) for number in (0, 1))
        wait_until(lambda: not any(figures.held_bytes for figures in group.figures().values()), "a beat says so")


def test_other_jobs_go_on_and_the_map_settles_though_the_job_stays() -> None:
    """Server 1 has room, and would wait for blocks that server 0 has had to drop: the job is ended there too."""
    small = table_for(sizes=(500,))
    with group_of(0, 2, expected=3) as group:
        for number, memory in ((0, int(LIMIT)), (1, 0), (2, 0)):
            group.start(number, memory=memory)
        with KeeperClient(group.keeper.address, TOKEN, PATIENCE) as keeper:
            keeper.open_space(SpaceTerms(job="other", key="its own", quota=0))
            client = begin(group, TABLE)
            other = group.client(0, job="other", key="its own")
            other.define(small)
            other.enrol(EnrolTerms(1, (0,), "asynchronous", scaling="none"))
            other.assign(values_of(small, 0), None, 0)
            lose(group, 2)
            assert "server 0 has no room" in str(refusal_of(client))
            before = pulled(other, small, commit(other, small, 1))
            wait_until(group.is_settled, "nothing is on its way any more")
            most = 2 * table_bytes(small.tensors)
            wait_until(lambda: all(each.held_bytes <= most for each in group.figures().values()), "it holds nothing")
            with pytest.raises(ServerRefused, match="server 0 has no room"):  # by server 1 as well
                group.client(1).define(TABLE)
            after = pulled(other, small, commit(other, small, 2))
            assert not torch.equal(before["t0"], after["t0"])


def test_a_part_that_still_fits_moves_as_ever() -> None:
    with group_of(3, 2, memory=int(LIMIT * 1.2)) as group:
        client = begin(group, TABLE)
        commit(client, TABLE, 1)
        lose(group, 2)
        number = commit(client, TABLE, 2)
        wait_until(group.is_settled, "two servers hold all of it")
        assert pulled(client, TABLE, number)
