"""Which ranks measure with each other, and when: rounds of pairs in which every rank has at most one partner. Pure.

All pairs meet, as in a tournament. If hosts are known, only one pair inside each host and the first ranks of the hosts
measure: those links are used later, and no two pairs of a round share a link.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.links.matrix import Hosts

# Rounds of the tournament that are measured: limits the figures that rank 0 has to collect from many ranks.
MOST_ROUNDS = 64

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
        return tournament(range(size))[:MOST_ROUNDS]
    inside = [(min(host[:2]), max(host[:2])) for host in hosts if len(host) > 1]
    between = tournament([host[0] for host in hosts])[:MOST_ROUNDS]
    return [inside, *between] if inside else between


def packed(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Put pairs into rounds, each pair into the first round in which both ranks are free."""
    rounds: list[list[Pair]] = []
    free: dict[int, int] = {}  # first round in which a rank has no partner yet
    for pair in pairs:
        number = max(free.get(rank, 0) for rank in pair)
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append(pair)
        free |= dict.fromkeys(pair, number + 1)
    return rounds
