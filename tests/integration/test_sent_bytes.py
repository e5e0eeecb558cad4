"""What a worker sends to servers is counted: bytes on the way, and bytes that servers read from its memory."""

from __future__ import annotations

import pytest

from shoal.parameters.blocks.table_blocks import table_bytes
from shoal.parameters.client.parameter_client import ParameterClient
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.server_groups import begin, group_of, table_for, terms_of, values_of, wait_until

NOTES = 32 * 1024  # bytes that all notes about a push are well below
REPLICAS = 2


def commit(client: ParameterClient, table: TableSpec, seed: int) -> None:
    push = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        push.put(name, gradient)
    assert isinstance(client.commit(push, terms_of(table)), Committed)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_push_counts_where_it_goes(shares_memory: bool) -> None:
    table = table_for()
    size = REPLICAS * table_bytes(table.tensors)
    with group_of(3, REPLICAS) as group:
        client = begin(group, table, shares_memory=shares_memory)
        before = client.sent
        assert before.over_network >= size, "the first values"
        commit(client, table, 1)
        by_memory, sent = client.sent.by_memory, client.sent.over_network - before.over_network
        assert by_memory == (size if shares_memory else 0)
        assert (0 if shares_memory else size) < sent < (NOTES if shares_memory else size + NOTES)


def test_what_was_sent_to_a_server_that_is_gone_still_counts() -> None:
    table = table_for()
    with group_of(3, REPLICAS) as group:
        client = begin(group, table)
        commit(client, table, 1)
        before = client.sent
        group.crash(1, "applied")
        commit(client, table, 2)
        wait_until(lambda: group.has_died(1) and group.is_settled(), "two servers hold everything")
        commit(client, table, 3)
        after = client.sent
        assert after.over_network > before.over_network
        assert after.by_memory >= before.by_memory + 2 * REPLICAS * table_bytes(table.tensors)
