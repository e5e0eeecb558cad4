"""Sets of positions as sorted, disjoint ranges. Pure.

Not here: who has which of them (`leases`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.wire.tables import Range


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same positions in order, neighbours joined and empty ones left out."""
    result: list[Range] = []
    for piece in sorted(ranges):
        if piece.size <= 0:
            continue
        last = result[-1] if result else None
        if last is not None and last.epoch == piece.epoch and piece.start <= last.stop:
            result[-1] = Range(last.epoch, last.start, max(last.stop, piece.stop))
        else:
            result.append(piece)
    return result


def without(ranges: Iterable[Range], cuts: Iterable[Range]) -> list[Range]:
    """The positions of `ranges` that are in none of `cuts`."""
    left = merged(ranges)
    for cut in merged(cuts):
        left = [part for piece in left for part in _parts_beside(piece, cut)]
    return left


def common(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The positions that are in both."""
    left = merged(ranges)
    return without(left, without(left, others))


def total(ranges: Iterable[Range]) -> int:
    """How many positions disjoint ranges hold."""
    return sum(piece.size for piece in ranges)


def _parts_beside(piece: Range, cut: Range) -> list[Range]:
    if piece.epoch != cut.epoch or cut.stop <= piece.start or piece.stop <= cut.start:
        return [piece]
    parts = (Range(piece.epoch, piece.start, cut.start), Range(piece.epoch, cut.stop, piece.stop))
    return [part for part in parts if part.size > 0]
