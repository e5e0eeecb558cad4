"""Who stays when some workers cannot reach each other: the largest set in which all workers reach each other. Pure.

Workers that are cut off from exactly the same others form a class: if hosts cannot reach each other, there are as few
classes as hosts. Groups of classes without a cut between them are decided separately. Each group is searched exactly
within a budget. Beyond it, as in a network of thousands where every link fails by itself, the result is a set that no
single exchange of a class for others improves.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

EXACT_CLASSES = 48  # in one group, up to which the exact search is tried
BUDGET = 20_000  # states that one search may look at: some tenths of a second
PASSES = 4  # over the classes outside the set, looking for an exchange that improves it


class _OverBudget(Exception):
    """The exact search would take too long."""


@dataclass(frozen=True)
class _Graph:
    """Classes of workers and the cuts between them. Sets of classes are the bits of a number."""

    workers: tuple[tuple[int, ...], ...]  # by class: its workers, by place
    cut: tuple[int, ...]  # by class: the classes that it cannot reach
    value: tuple[int, ...]  # by class; the best set has the highest sum, and no two sets have the same sum

    def of(self, chosen: int) -> int:
        return sum(self.value[at] for at in _bits(chosen))


def connected_set(
    candidates: Collection[int], named: Mapping[int, Collection[int]], preferred: Sequence[Collection[int]] = ()
) -> frozenset[int]:
    """`named`: by worker, the workers that it cannot reach. One side's report is enough, since a cut may be one-way.

    The best set has most workers of `preferred[0]`, then most of `preferred[1]` and so on, then most workers, then the
    lowest numbers.
    """
    numbers = sorted(candidates)
    cuts = _cuts({number: at for at, number in enumerate(numbers)}, named)
    suspects = [at for at in range(len(numbers)) if at in cuts]
    if not suspects:
        return frozenset(candidates)
    levels = [{at for at in suspects if numbers[at] in level} for level in map(frozenset, preferred)]
    graph = _graph(suspects, cuts, [*levels, set(suspects)])
    chosen = 0
    for part in _parts(graph):
        chosen |= _best(graph, part)
    leaving = {worker for at in _bits(~chosen & _all(graph)) for worker in graph.workers[at]}
    return frozenset(number for at, number in enumerate(numbers) if at not in leaving)


def _cuts(places: Mapping[int, int], named: Mapping[int, Collection[int]]) -> dict[int, int]:
    """By worker in a cut: the workers that it cannot reach or that cannot reach it. Workers are named by place."""
    speakers: dict[tuple[int, ...], list[int]] = {}  # grouped: workers of one host name the same others
    for worker, others in named.items():
        if worker in places and others:
            speakers.setdefault(tuple(others), []).append(places[worker])
    cuts: dict[int, int] = {}
    for others, ours in speakers.items():
        theirs = [places[other] for other in others if other in places]
        for here, there in ((ours, _mask(theirs)), (theirs, _mask(ours))):
            for at in here:
                if far := there & ~(1 << at):
                    cuts[at] = cuts.get(at, 0) | far
    return cuts


def _graph(suspects: Sequence[int], cuts: Mapping[int, int], levels: Sequence[set[int]]) -> _Graph:
    twins: dict[int, list[int]] = {}  # by the set of workers that they cannot reach
    for at in suspects:
        twins.setdefault(cuts[at], []).append(at)
    classes = {at: number for number, workers in enumerate(twins.values()) for at in workers}
    order = {at: len(suspects) - 1 - number for number, at in enumerate(suspects)}
    values = []
    for workers in twins.values():
        # One number that compares first by the counts on each level in turn, then by the lowest places.
        total = 0
        for level in levels:
            total = total * (len(suspects) + 1) + sum(at in level for at in workers)
        values.append((total << len(suspects)) + _mask(order[at] for at in workers))
    cut = tuple(_mask({classes[at] for at in _bits(mask)}) for mask in twins)
    return _Graph(tuple(map(tuple, twins.values())), cut, tuple(values))


def _all(graph: _Graph) -> int:
    return (1 << len(graph.cut)) - 1


def _parts(graph: _Graph) -> Iterable[int]:
    """Groups of classes that cuts connect, directly or indirectly."""
    left = _all(graph)
    while left:
        part = front = left & -left
        while front:
            reached = 0
            for at in _bits(front):
                reached |= graph.cut[at]
            front = reached & ~part
            part |= front
        left &= ~part
        yield part


def _best(graph: _Graph, part: int) -> int:
    if part.bit_count() <= EXACT_CLASSES:
        try:
            return _exact(graph, part, {})
        except _OverBudget:
            pass
    return _improved(graph, part, _thinned(graph, part))


def _exact(graph: _Graph, left: int, known: dict[int, int]) -> int:
    """The best set of classes that reach each other. `known` caches the results for sets seen before."""
    if left in known:
        return known[left]
    if len(known) >= BUDGET:
        raise _OverBudget
    worst = max(_bits(left), key=lambda at: (graph.cut[at] & left).bit_count(), default=None)
    if worst is None or not graph.cut[worst] & left:
        best = left
    else:
        rest = left & ~(1 << worst)
        without = _exact(graph, rest, known)
        with_it = _exact(graph, rest & ~graph.cut[worst], known) | 1 << worst
        best = max(without, with_it, key=graph.of)
    known[left] = best
    return best


def _thinned(graph: _Graph, part: int) -> int:
    """Remove the class that costs most, again and again, until all remaining classes reach each other."""
    left = part
    queue = [(graph.value[at] - graph.of(graph.cut[at] & part), at) for at in _bits(part)]
    heapq.heapify(queue)
    while queue:
        gain, at = heapq.heappop(queue)
        if not left >> at & 1 or not graph.cut[at] & left:
            continue
        now = graph.value[at] - graph.of(graph.cut[at] & left)
        if now > gain:  # other classes were removed meanwhile, so this one costs less
            heapq.heappush(queue, (now, at))
        else:
            left &= ~(1 << at)
    return left


def _improved(graph: _Graph, part: int, chosen: int) -> int:
    """Add each class that is worth more than all the classes that must leave for it."""
    for _ in range(PASSES):
        before = chosen
        for at in _bits(part & ~chosen):
            if graph.value[at] > graph.of(graph.cut[at] & chosen):
                chosen = chosen & ~graph.cut[at] | 1 << at
        if chosen == before:
            break
    return chosen


def _mask(places: Iterable[int]) -> int:
    mask = 0
    for at in places:
        mask |= 1 << at
    return mask


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
