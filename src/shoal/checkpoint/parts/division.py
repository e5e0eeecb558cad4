"""Which worker writes which rows of which tensor: a pure plan that every worker makes alike.

The state is replicated, so each worker copies and writes about 1/n of its bytes. Tensors are laid end to end and cut at
row boundaries; small ones stay whole. No torch here, only shapes and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SMALLEST_CUT = 64 * 1024  # bytes; smaller tensors are not worth a second piece


@dataclass(frozen=True)
class Extent:
    """What the plan needs to know about a tensor."""

    shape: tuple[int, ...]
    element_bytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class Rows:
    """Part of a tensor along its first dimension."""

    tensor: int  # index into the list the plan was made from
    start: int
    count: int  # of a tensor without dimensions: 1


def divide(extents: Sequence[Extent], parts: int) -> tuple[tuple[Rows, ...], ...]:
    """One list of rows for each part. Every row of every tensor is in exactly one."""
    total = sum(extent.size for extent in extents)
    plan: list[list[Rows]] = [[] for _ in range(parts)]
    position = 0  # of the tensor's first byte when all are laid end to end
    for index, extent in enumerate(extents):
        rows = extent.shape[0] if extent.shape else 1
        if rows < 2 or extent.size < SMALLEST_CUT:
            middle = position + extent.size // 2
            part = min(parts - 1, middle * parts // total) if total else 0
            plan[part].append(Rows(tensor=index, start=0, count=rows))
        else:
            for part, (start, end) in enumerate(_cuts(position, extent.size // rows, rows, total, parts)):
                if end > start:
                    plan[part].append(Rows(tensor=index, start=start, count=end - start))
        position += extent.size
    return tuple(map(tuple, plan))


def _cuts(position: int, row_bytes: int, rows: int, total: int, parts: int) -> list[tuple[int, int]]:
    """For each part: its first row, and the row after its last."""
    bounds = [
        min(rows, max(0, round((part * total / parts - position) / row_bytes))) if 0 < part < parts else part and rows
        for part in range(parts + 1)
    ]
    return list(pairwise(bounds))
