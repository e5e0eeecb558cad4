"""Sets of positions as sorted, disjoint ranges. Pure. No operation takes longer than sorting its arguments.

Not here: which worker has which positions (`leases`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.wire.tables import Range


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same positions in order, with neighbours joined and empty ranges left out."""
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
    left: list[Range] = []
    ordered, place = merged(cuts), 0
    for piece in merged(ranges):
        while place < len(ordered) and _end(ordered[place]) <= (piece.epoch, piece.start):
            place += 1  # this cut ends before the piece, and so before all later pieces
        start, at = piece.start, place
        while at < len(ordered) and (ordered[at].epoch, ordered[at].start) < _end(piece):
            if ordered[at].start > start:
                left.append(Range(piece.epoch, start, ordered[at].start))
            start = ordered[at].stop
            at += 1
        if start < piece.stop:
            left.append(Range(piece.epoch, start, piece.stop))
    return left


def common(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The positions that are in both."""
    left = merged(ranges)
    return without(left, without(left, others))


def total(ranges: Iterable[Range]) -> int:
    """How many positions these disjoint ranges hold."""
    return sum(piece.size for piece in ranges)


def _end(piece: Range) -> tuple[int, int]:
    return piece.epoch, piece.stop
