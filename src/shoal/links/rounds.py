"""Which ranks measure with each other, and when: rounds of pairs in which every rank has at most one partner. Pure.

All pairs meet, as in a tournament; of many ranks, those pairs that a mesh begins with (`first_peers`). If hosts are
known, only one pair inside each host and the first ranks of the hosts measure: those links are used later, and no two
pairs of a round share a link.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.links.matrix import Hosts
from shoal.transport.mesh.first_peers import first_peers

Pair = tuple[int, int]  # the lower rank first: it asks, the other one answers


def tournament(ranks: Sequence[int]) -> list[list[Pair]]:
    """Every pair once, in as few rounds as possible: one rank stays, the others move on by one place."""
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        facing = zip(places[: len(places) // 2], reversed(places[len(places) // 2 :]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def rounds_of(size: int, hosts: Hosts = ()) -> list[list[Pair]]:
    if not hosts:
        return _among(range(size))
    inside = [(min(host[:2]), max(host[:2])) for host in hosts if len(host) > 1]
    between = _among([host[0] for host in hosts])
    return [inside, *between] if inside else between


def _among(ranks: Sequence[int]) -> list[list[Pair]]:
    size = len(ranks)
    if len(first_peers(0, size)) == size - 1:
        return tournament(ranks)
    places = [(place, peer) for place in range(size) for peer in sorted(first_peers(place, size)) if place < peer]
    return packed([(min(ranks[a], ranks[b]), max(ranks[a], ranks[b])) for a, b in places])


def packed(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Put pairs into rounds, each pair into the first round in which both ranks are free."""
    rounds: list[list[Pair]] = []
    busy: dict[int, set[int]] = {}  # the rounds in which a rank has a partner
    for pair in pairs:
        taken = busy.setdefault(pair[0], set()) | busy.setdefault(pair[1], set())
        number = next(number for number in range(len(rounds) + 1) if number not in taken)
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(pair)
        for rank in pair:
            busy[rank].add(number)
    return rounds
