"""Cuts into turns cover everything once, in order, and depend on sizes alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.gpu import gpu_cuts
from shoal.collectives.gpu.gpu_cuts import TensorPiece, cut_parts, cut_run, turn_elements

counts = some.lists(some.integers(0, 40), max_size=6)


def covered(turns: list[list[TensorPiece]], tensor: int) -> list[int]:
    return [
        element
        for pieces in turns
        for piece in pieces
        if piece.tensor == tensor
        for element in range(piece.start, piece.stop)
    ]


@given(counts, some.integers(1, 17))
def test_a_run_is_cut_into_full_turns_and_a_rest(sizes: list[int], most: int) -> None:
    turns = cut_run(sizes, most)
    for tensor, size in enumerate(sizes):
        assert covered(turns, tensor) == list(range(size))
    lengths = [sum(piece.stop - piece.start for piece in pieces) for pieces in turns]
    assert all(length == most for length in lengths[:-1])
    assert lengths[-1] <= most
    assert len(turns) == max(1, -(-sum(sizes) // most))


@given(counts.filter(bool), some.integers(1, 17))
def test_every_turn_has_a_piece_of_every_rank(sizes: list[int], most: int) -> None:
    turns = cut_parts(sizes, most)
    for pieces in turns:
        assert [piece.tensor for piece in pieces] == list(range(len(sizes)))
        assert sum(piece.stop - piece.start for piece in pieces) <= max(most, len(sizes))
    for tensor, size in enumerate(sizes):
        assert covered(turns, tensor) == list(range(size))


@given(some.integers(0, 2**32), some.sampled_from([1, 2, 4, 8, 16]))
def test_turns_are_neither_tiny_nor_huge(elements: int, itemsize: int) -> None:
    size = turn_elements(elements, itemsize) * itemsize
    assert gpu_cuts.LEAST_BYTES <= size <= gpu_cuts.MOST_BYTES
