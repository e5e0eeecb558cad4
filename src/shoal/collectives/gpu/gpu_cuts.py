"""How an operation on GPU tensors is cut into turns, so that copying and reducing overlap. Pure: sizes alone.

All ranks must cut alike, so a cut depends only on what all ranks have in common: the tensors' sizes and the element's
size. Every operation has at least one turn, even without any element, because ranks compare their operations in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Bytes of a turn, as measured (benchmarks/gpu.md): shorter turns cost more in calls than they hide, and with longer
# ones more of the first copy down and the last copy up overlaps with nothing.
LEAST_BYTES = 4 * 1024 * 1024
MOST_BYTES = 8 * 1024 * 1024
TURNS = 4  # of an operation of medium size


@dataclass(frozen=True)
class TensorPiece:
    """Elements of one tensor of a list."""

    tensor: int
    start: int
    stop: int


def turn_elements(elements: int, itemsize: int) -> int:
    """How many elements of an operation go in one turn."""
    wanted = -(-elements * itemsize // TURNS)
    return min(max(wanted, LEAST_BYTES), MOST_BYTES) // itemsize


def cut_run(counts: Sequence[int], most: int) -> list[list[TensorPiece]]:
    """Cut tensors of `counts` elements, taken as one run, into turns of `most` elements; the last may have fewer."""
    turns: list[list[TensorPiece]] = [[]]
    room = most
    for tensor, count in enumerate(counts):
        start = 0
        while start < count:
            if not room:
                turns.append([])
                room = most
            stop = min(count, start + room)
            turns[-1].append(TensorPiece(tensor, start, stop))
            room -= stop - start
            start = stop
    return turns


def cut_parts(counts: Sequence[int], most: int) -> list[list[TensorPiece]]:
    """Cut one part per rank, of `counts` elements. Every turn has a piece of every part, empty once the part has ended.

    A turn has at most `most` elements of all parts together, but at least one of each.
    """
    each = max(1, most // max(1, len(counts)))
    turns = max(1, -(-max(counts, default=0) // each))
    return [
        [TensorPiece(part, min(count, turn * each), min(count, (turn + 1) * each)) for part, count in enumerate(counts)]
        for turn in range(turns)
    ]
