"""The hash ring: even shares, few moves, the same everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.parameters.blocks.hash_ring import SLACK, chains
from shoal.parameters.blocks.table_blocks import blocks_of
from support.examples import scaled
from support.model_tables import language_model

Chains = tuple[tuple[int, ...], ...]
MODEL = [block.size for block in blocks_of(language_model())]
groups = st.sets(st.integers(0, 200), min_size=1, max_size=16).map(sorted)


def loads(sizes: list[int], placed: Chains, servers: list[int], *, only_first: bool) -> dict[int, int]:
    found = dict.fromkeys(servers, 0)
    for size, chain in zip(sizes, placed, strict=True):
        for server in chain[:1] if only_first else chain:
            found[server] += size
    return found


def moved(sizes: list[int], one: Chains, other: Chains) -> float:
    """Part of all held bytes that a server holds in `other` and did not in `one`."""
    new = sum(size * len(set(after) - set(before)) for size, before, after in zip(sizes, one, other, strict=True))
    return new / (sum(sizes) * len(one[0]))


@given(sizes=st.lists(st.integers(1, 1 << 20), max_size=60), servers=groups, replicas=st.integers(1, 4))
def test_every_block_has_as_many_distinct_holders_as_there_can_be(
    sizes: list[int], servers: list[int], replicas: int
) -> None:
    placed = chains(sizes, servers, replicas)
    assert len(placed) == len(sizes)
    for chain in placed:
        assert len(set(chain)) == len(chain) == min(replicas, len(servers))
        assert set(chain) <= set(servers)
    assert placed == chains(sizes, list(reversed(servers)), replicas)


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("count", range(2, 17))
def test_shares_of_the_language_model_are_even(count: int, replicas: int) -> None:
    servers = list(range(count))
    placed = chains(MODEL, servers, replicas)
    for only_first in (True, False):
        found = loads(MODEL, placed, servers, only_first=only_first)
        assert max(found.values()) <= 1.1 * sum(found.values()) / count


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=200), servers=groups)
def test_no_server_has_more_than_its_share_and_a_block(sizes: list[int], servers: list[int]) -> None:
    found = loads(sizes, chains(sizes, servers, 1), servers, only_first=True)
    assert max(found.values()) <= max(SLACK * sum(sizes) / len(servers), sum(sizes) / len(servers) + max(sizes))


@settings(deadline=None, max_examples=scaled(60))
@given(
    servers=st.sets(st.integers(0, 200), min_size=2, max_size=17).map(sorted),
    gone=st.integers(0, 16),
    replicas=st.integers(1, 3),
)
def test_one_server_more_or_less_moves_about_its_share(servers: list[int], gone: int, replicas: int) -> None:
    fewer = [number for number in servers if number != servers[gone % len(servers)]]
    replicas = min(replicas, len(fewer))
    many, few = chains(MODEL, servers, replicas), chains(MODEL, fewer, replicas)
    limit = 1.5 / len(servers) + 0.03
    assert moved(MODEL, few, many) <= limit
    assert moved(MODEL, many, few) <= limit


def test_the_placement_never_changes_between_versions_of_this_program() -> None:
    """Servers and workers may be started at different times: they must agree on where blocks are."""
    expected = ((1, 2), (1, 2), (0, 1), (1, 0), (2, 1), (0, 1), (2, 0), (0, 2))
    assert chains([4096] * 8, [0, 1, 2], 2) == expected


def test_nowhere_to_put_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 servers"):
        chains([1], [], 1)
