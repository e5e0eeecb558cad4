"""Tables of fewer blocks than there are servers: whoever holds nothing of a job serves it all the same."""

from __future__ import annotations

import pytest
import torch

from shoal.parameters.client.parameter_client import ParameterClient
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.server_groups import LR, begin, group_of, pulled, table_for, terms_of, values_of, wait_until

ONE_BLOCK = table_for(sizes=(500,))


def commit(client: ParameterClient, table: TableSpec, seed: int, **terms: object) -> int:
    push = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        push.put(name, gradient)
    answer = client.commit(push, terms_of(table, **terms))
    assert isinstance(answer, Committed), answer
    return answer.number


@pytest.mark.parametrize(("servers", "replicas"), [(2, 1), (3, 2)])
def test_updates_of_one_block_on_several_servers(servers: int, replicas: int) -> None:
    with group_of(servers, replicas) as group:
        client = begin(group, ONE_BLOCK)
        expected = values_of(ONE_BLOCK, 0)["t0"]
        for seed in range(1, 4):
            number = commit(client, ONE_BLOCK, seed)
            expected.add_(values_of(ONE_BLOCK, seed)["t0"], alpha=-LR)
        torch.testing.assert_close(pulled(client, ONE_BLOCK, number)["t0"], expected, rtol=0, atol=1e-5)
        wait_until(lambda: all(not server._spaces["job"].has_work for server in group.servers.values()), "all did it")
        assert not any(group.has_died(number) for number in range(servers))


def test_a_norm_over_servers_of_which_one_holds_nothing() -> None:
    with group_of(3, 2) as group:
        client = begin(group, ONE_BLOCK, mode="synchronous")
        gradient = values_of(ONE_BLOCK, 1)["t0"]
        number = commit(client, ONE_BLOCK, 1, clip_norms=(0.5,))
        expected = values_of(ONE_BLOCK, 0)["t0"] - LR * gradient * 0.5 / gradient.norm()
        torch.testing.assert_close(pulled(client, ONE_BLOCK, number)["t0"], expected, rtol=0, atol=1e-4)


def test_who_held_nothing_takes_over_from_who_died() -> None:
    with group_of(3, 2) as group:
        client = begin(group, ONE_BLOCK)
        commit(client, ONE_BLOCK, 1)
        holders = [number for number, server in group.servers.items() if server._spaces["job"].held_bytes]
        group.crash(holders[0], "applied")
        number = commit(client, ONE_BLOCK, 2)
        wait_until(lambda: group.has_died(holders[0]) and group.is_settled(), "the other two hold it")
        before = pulled(client, ONE_BLOCK, number)["t0"]
        number = commit(client, ONE_BLOCK, 3)
        expected = before - LR * values_of(ONE_BLOCK, 3)["t0"]
        torch.testing.assert_close(pulled(client, ONE_BLOCK, number)["t0"], expected, rtol=0, atol=1e-5)
