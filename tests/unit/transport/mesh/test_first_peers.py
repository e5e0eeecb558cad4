"""Which ranks are connected from the beginning: everybody in a small mesh, and a few in a large one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as some

from shoal.transport.mesh.first_peers import FULL_UP_TO, children_of, first_peers, parent_of


@given(some.integers(2, 3000), some.data())
def test_peers_are_mutual_and_few(size: int, data: some.DataObject) -> None:
    rank = data.draw(some.integers(0, size - 1))
    peers = first_peers(rank, size)
    assert rank not in peers
    assert all(rank in first_peers(peer, size) for peer in peers)
    assert len(peers) == size - 1 if size <= FULL_UP_TO else 2 <= len(peers) <= 5


@given(some.integers(2, 2000))
def test_the_tree_reaches_everybody_in_few_steps(size: int) -> None:
    depths = {0: 0}
    for rank in range(1, size):
        parent = parent_of(rank)
        assert parent is not None
        assert rank in children_of(parent, size)
        depths[rank] = depths[parent] + 1
    assert max(depths.values()) <= math.log2(size)
