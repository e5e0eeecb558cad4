"""What ranks of one machine take from each other as it is, in many sizes: small, of several slots, and mixed.

Who takes nothing puts what it gives into its slot, round by round; others are read where they lie. Here every pattern
meets every way. Not here: sums (`test_group`).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.exchanger import Operation
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.wire.frames import FrameKind
from support.collectives import succeed
from support.memory_groups import WAYS, memory_groups, neighbourhoods

# Elements of a float32: none, one, a slot, more than one, several of them, and large enough to pass by the cache.
SIZES = (0, 1, 1 << 18, (1 << 18) + 5, 700_001, (1 << 20) + 3)


def part(source: int, target: int, elements: int) -> torch.Tensor:
    """Every element says from whom and for whom it is, and where it is."""
    return torch.arange(elements, dtype=torch.float32).remainder_(65536) + 100_000 * (1 + source) + 1_000_000 * target


@pytest.mark.parametrize("way", WAYS)
def test_every_part_arrives_whoever_gives_how_much(way: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(some.data())
    def check(data: some.DataObject) -> None:
        size = data.draw(some.integers(2, 4))
        lengths = data.draw(some.lists(some.sampled_from(SIZES), min_size=size * size, max_size=size * size))
        exchange_all(way, [lengths[rank * size : (rank + 1) * size] for rank in range(size)])

    check()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_gather", [True, False])
def test_one_rank_gathers_or_scatters(way: str, is_gather: bool) -> None:
    for one in (0, 2):
        for elements in ((1 << 20) + 3, 1000):
            lengths = [
                [elements if one == (target if is_gather else source) else 0 for target in range(3)]
                for source in range(3)
            ]
            exchange_all(way, lengths)


@pytest.mark.parametrize("way", WAYS)
def test_a_part_stays_where_it_is_if_it_is_given_and_taken_in_one_place(way: str) -> None:
    elements = (1 << 20) + 3
    with memory_groups(way, 2) as made:
        parts = [part(0, target, elements) for target in range(2)]
        nothing, taken = torch.empty(0), torch.zeros(elements)

        succeed(
            lambda: made[0].all_to_all([parts[0], nothing], parts, label="scatter").wait(),
            lambda: made[1].all_to_all([taken, nothing], [nothing, nothing], label="scatter").wait(),
        )
        assert torch.equal(parts[0], part(0, 0, elements))
        assert torch.equal(taken, part(0, 1, elements))


@pytest.mark.parametrize("way", WAYS)
def test_as_many_tensors_as_ranks_are_all_for_everybody(way: str) -> None:
    """An entry for each rank looks the same, but there one of them is for its owner alone."""
    hoods = neighbourhoods(list(in_process_meshes(2)), [[0, 1]])
    exchangers = [MemoryExchanger(hood.team, WAYS[way], 1) for hood in hoods if hood.team is not None]
    tensors = [[part(rank, index, 300_001) for index in range(2)] for rank in range(2)]
    operation = Operation(FrameKind.BROADCAST, 0, "both", torch.float32, 600_002)
    try:
        succeed(
            *(
                partial(exchanger.broadcast_all, operation, tensors[rank], 1)
                for rank, exchanger in enumerate(exchangers)
            )
        )
    finally:
        for exchanger in exchangers:
            exchanger.close()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*tensors, strict=True))
    assert torch.equal(tensors[0][1], part(1, 1, 300_001))


def exchange_all(way: str, lengths: list[list[int]]) -> None:
    """`lengths`: elements by source and target. Twice, so that what the first leaves behind cannot pass for new."""
    size = len(lengths)
    with memory_groups(way, size) as made:
        for turn in range(2):
            given_parts = [[part(a, b, lengths[a][b]) + turn for b in range(size)] for a in range(size)]
            taken = [[torch.zeros(lengths[a][b]) for a in range(size)] for b in range(size)]
            pending = [
                group.all_to_all(taken[rank], given_parts[rank], label="parts") for rank, group in enumerate(made)
            ]
            for one in pending:
                one.wait()
            for target in range(size):
                for source in range(size):
                    assert torch.equal(taken[target][source], given_parts[source][target]), (turn, source, target)
