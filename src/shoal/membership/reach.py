"""Who stays when some workers cannot reach each other: the largest set in which everybody reaches everybody. Pure.

Exact where few workers are in such pairs; beyond, the one in most pairs goes first, until none is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

EXACT = 12  # workers in pairs up to which every choice is looked at


def connected_set(
    candidates: Collection[int], pairs: Iterable[tuple[int, int]], carriers: Collection[int]
) -> frozenset[int]:
    """The largest; of several, the one with most carriers of the job's state, then with the lowest numbers."""
    cut = {frozenset(pair) for pair in pairs if pair[0] != pair[1] and set(pair) <= set(candidates)}
    suspects = sorted({worker for pair in cut for worker in pair})
    if not suspects:
        return frozenset(candidates)
    staying = _exact(suspects, cut, carriers) if len(suspects) <= EXACT else _greedy(suspects, cut, carriers)
    return frozenset(candidates) - frozenset(suspects) | staying


def _exact(suspects: list[int], cut: set[frozenset[int]], carriers: Collection[int]) -> frozenset[int]:
    for size in range(len(suspects), 0, -1):
        whole = [
            frozenset(chosen)
            for chosen in combinations(suspects, size)
            if not any(frozenset(pair) in cut for pair in combinations(chosen, 2))
        ]
        if whole:
            return min(whole, key=lambda chosen: (-len(chosen & frozenset(carriers)), sorted(chosen)))
    return frozenset()


def _greedy(suspects: list[int], cut: set[frozenset[int]], carriers: Collection[int]) -> frozenset[int]:
    left = set(suspects)
    while remaining := [pair for pair in cut if pair <= left]:
        count = {worker: sum(worker in pair for pair in remaining) for worker in left}
        left.discard(max(left, key=lambda worker: (count[worker], worker not in carriers, worker)))
    return frozenset(left)
