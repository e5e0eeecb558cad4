"""What a server holds under one version of the map."""

from __future__ import annotations

import pytest

from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.server.updates.holding import Holding, layout_of
from shoal.wire.tables import TensorSpec
from support.model_tables import server_map, table_of
from support.shards import no_limit

TABLE = table_of([TensorSpec(name="t", shape=(100_000,), dtype="float32")])


@pytest.mark.parametrize(
    ("after", "living"),
    [((2, 3), (2, 3)), ((2, 3), (0, 1, 2, 3)), ((1, 2, 3), (1, 2, 3)), ((0, 1, 2, 3), (1, 2, 3))],
    ids=["two have left", "two are leaving", "one has left", "one died"],
)
def test_each_gradient_is_in_one_servers_squares_whoever_has_left_since(
    after: tuple[int, ...], living: tuple[int, ...]
) -> None:
    """An update that was recorded before servers left may be applied when they are gone."""
    servers = server_map([0, 1, 2, 3], [0, 1, 2, 3], list(after), replicas=2)
    newer = server_map(list(living), list(living), list(living), replicas=2)
    found: list[int] = []
    for me in living:
        holding = Holding(layout_of(TABLE, servers, me), no_limit())
        found += holding.answers_for(newer)
        holding.close()
    assert sorted(found) == list(range(len(blocks_of(TABLE))))
