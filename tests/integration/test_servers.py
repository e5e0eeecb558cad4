"""Servers of a group: what is committed is applied once, whoever dies when; blocks move; nonsense is refused."""

from __future__ import annotations

import pytest
import torch

from shoal.parameters.client import ParameterClient
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.server_groups import LR, Group, begin, group_of, pulled, table_for, terms_of, values_of, wait_until


def push(client: ParameterClient, table: TableSpec, seed: int, step: int = 0) -> Committed:
    push = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        push.put(name, gradient)
    answer = client.commit(push, terms_of(table), step=step)
    assert isinstance(answer, Committed), answer
    return answer


def expected(table: TableSpec, seeds: range) -> dict[str, torch.Tensor]:
    """SGD's values after gradients of these seeds."""
    found = values_of(table, 0)
    for seed in seeds:
        for name, gradient in values_of(table, seed).items():
            found[name].add_(gradient, alpha=-LR)
    return found


def check(group: Group, client: ParameterClient, table: TableSpec, *, pushes: int, at_least: int) -> None:
    wanted = expected(table, range(1, pushes + 1))
    for name, value in pulled(client, table, at_least).items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (3, 1), (3, 2)])
def test_pushes_are_applied_and_pulled(servers: int, replicas: int, shares_memory: bool) -> None:
    table = table_for()
    with group_of(servers, replicas) as group:
        client = begin(group, table, shares_memory=shares_memory)
        for number in range(1, 6):
            answer = push(client, table, number)
            check(group, client, table, pushes=number, at_least=answer.number)
        assert answer.updates == 5


POINTS = ["record", "recorded", "answer", "unit", "applied"]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_dies_at_any_point_loses_and_repeats_nothing(point: str, victim: int) -> None:
    if (point in ("record", "answer")) != (victim == 0) and point not in ("unit", "applied"):
        return  # only home passes these, only others the other
    table = table_for()
    with group_of(3, 2) as group:
        client = begin(group, table)
        answer = push(client, table, 1)
        group.crash(victim, point, 2)
        for number in range(2, 8):
            answer = push(client, table, number)
        assert group.has_died(victim)
        assert answer.updates == 7
        check(group, client, table, pushes=7, at_least=answer.number)
        group.start(3)
        wait_until(lambda: group.holders() == tuple({0, 1, 2, 3} - {victim}), "three servers hold everything")
        answer = push(client, table, 8)
        check(group, client, table, pushes=8, at_least=answer.number)
