"""The order of ranks around a ring that crosses slow links as rarely as possible. Pure.

From rank 0 the search goes to the nearest rank that is left, again and again; then it reverses stretches of the ring
while that makes the ring faster (2-opt). The same links give the same order everywhere. The order need not be the best.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.links.matrix import LinkMatrix

# Bytes of the tensor for which the order is optimized: rings are for large tensors.
TYPICAL_BYTES = 16 * 1024 * 1024
# Fraction by which another order than 0, 1, 2, ... must be better: figures of equal links differ by chance.
LEAST_GAIN = 0.1
MOST_LOOKS = 500_000  # at links, about 0.1 s; with 16 ranks, trying all stretches once takes 105 times 16 looks


def ring_order(matrix: LinkMatrix) -> tuple[int, ...]:
    """The ranks in their order around the ring, from rank 0."""
    ranks = tuple(range(matrix.size))
    if matrix.size < 4:  # orders of such a ring differ in direction only
        return ranks
    part = TYPICAL_BYTES / matrix.size
    seconds = [[link.seconds(part) for link in row] for row in matrix.rows]
    found = _turned(min((ranks, _nearest(seconds)), key=lambda order: _slowness(seconds, order)), seconds)
    is_better = _slowness(seconds, found) <= (1 - LEAST_GAIN) * _slowness(seconds, ranks)
    return found if is_better else ranks


def _slowness(seconds: Sequence[Sequence[float]], order: Sequence[int]) -> float:
    """The slowest link sets the pace of a ring; among rings with equal pace, one with fewer slow links is better, since
    slow links may share a cable."""
    hops = [seconds[here][there] for here, there in zip(order, (*order[1:], order[0]), strict=True)]
    return sum(hops) + len(hops) * max(hops)


def _nearest(seconds: Sequence[Sequence[float]]) -> tuple[int, ...]:
    order, left = [0], set(range(1, len(seconds)))
    while left:
        away = seconds[order[-1]]
        order.append(min(left, key=lambda rank, away=away: (away[rank], rank)))  # type: ignore[misc]  # a bound value
        left.remove(order[-1])
    return tuple(order)


def _turned(order: tuple[int, ...], seconds: Sequence[Sequence[float]]) -> tuple[int, ...]:
    best, looks, is_better = _slowness(seconds, order), 0, True
    while is_better:
        is_better = False
        for start in range(1, len(order) - 1):
            for stop in range(start + 2, len(order) + 1):
                looks += len(order)
                if looks > MOST_LOOKS:
                    return order
                turned = (*order[:start], *reversed(order[start:stop]), *order[stop:])
                if (taken := _slowness(seconds, turned)) < best * (1 - 1e-9):
                    order, best, is_better = turned, taken, True
    return order
