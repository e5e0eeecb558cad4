"""How long each schedule takes on given links: the cost model for choosing schedules. Pure.

A transfer costs its link's latency, its bytes, and some processor time; a rank takes part in one transfer per direction
at a time. Schedules are only named here, since this package lies below the one that defines them; a test compares these
figures with replays of the real programs. Not modelled: several ranks that share one network card or one core, and
links that others use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.links.matrix import LinkMatrix

PIPE_BYTES = 512 * 1024  # about the size of the segments that follow each other through a tree or a chain
# Seconds that a transfer costs its two ends together, beyond the message with which latencies are measured. Taken from
# the processor time of a 64-byte all-reduce on rings of 4 and of 2 ranks: each further send and receive takes 66 us, of
# which about 20 are part of the measured latency.
TRANSFER_SECONDS = 40e-6
REDUCE_SECONDS_PER_BYTE = 0.15e-9  # adding to values in the cache

Cost = Callable[[int], float]  # seconds for a size in bytes


def pieces_of(size: float) -> int:
    """How many segments follow each other through a tree or a chain."""
    return max(1, -(-int(size) // PIPE_BYTES))


def ring(matrix: LinkMatrix, size: int, order: Sequence[int]) -> float:
    """All-reduce. A rank waits for its left neighbour in each round, so either the time around the whole ring or the
    link that needs longest for its bytes sets the pace."""
    ranks = len(order)
    if ranks < 2:
        return 0.0
    part = size / ranks
    hops = [matrix.link(order[place], order[(place + 1) % ranks]) for place in range(ranks)]
    around = sum(hop.seconds(part) for hop in hops) / ranks + TRANSFER_SECONDS
    slowest = max(hop.per_byte for hop in hops) * part + TRANSFER_SECONDS
    return (ranks - 1) * (2 * max(around, slowest) + part * REDUCE_SECONDS_PER_BYTE)


def halving_doubling(matrix: LinkMatrix, size: int) -> float:
    """All-reduce. The slowest link of each round sets its time."""
    ranks, blocks, total = matrix.size, matrix.size, 0.0
    while blocks > 1:
        half = (blocks + 1) // 2
        part = size * (blocks - half) / ranks
        there = max(matrix.link(rank, (rank + half) % ranks).seconds(part) for rank in range(ranks))
        back = max(matrix.link((rank + half) % ranks, rank).seconds(part) for rank in range(ranks))
        frames = min(2, blocks - half)  # some rank's blocks go past the end of the tensor
        total += there + back + 2 * frames * TRANSFER_SECONDS + part * REDUCE_SECONDS_PER_BYTE
        blocks = half
    return total


@dataclass(frozen=True)
class _Tree:
    """A binary tree over `ranks`, whose first is the root."""

    matrix: LinkMatrix
    ranks: Sequence[int]

    def children(self, place: int) -> range:
        return range(2 * place + 1, min(2 * place + 3, len(self.ranks)))

    def seconds(self, source: int, target: int, size: float) -> float:
        return self.matrix.link(self.ranks[source], self.ranks[target]).seconds(size) + TRANSFER_SECONDS

    def busy(self, source: int, target: int, size: float) -> float:
        """How long a transfer keeps its two ranks from the next one."""
        return self.matrix.link(self.ranks[source], self.ranks[target]).per_byte * size + TRANSFER_SECONDS

    def up(self, size: float) -> float:
        """Seconds until the root has the sum of one segment over all ranks."""
        ready = [0.0] * len(self.ranks)
        for place in reversed(range(len(self.ranks))):
            for child in self.children(place):
                arrived = ready[child] + self.seconds(child, place, size)
                ready[place] = max(arrived, ready[place] + self.busy(child, place, size))
                ready[place] += size * REDUCE_SECONDS_PER_BYTE
        return ready[0]

    def down(self, size: float) -> float:
        """Seconds until all ranks have one segment from the root."""
        ready = [0.0] * len(self.ranks)
        for place in range(len(self.ranks)):
            waited = 0.0
            for child in self.children(place):
                ready[child] = ready[place] + waited + self.seconds(place, child, size)
                waited += self.busy(place, child, size)
        return max(ready)

    def window(self, size: float, *, leaves: bool) -> float:
        """Seconds between two segments if latency sets the pace: a rank in row d sends 2d+1 segments up before it
        takes the first one on its way down. `leaves`: leaves wait too."""
        ways, pace = [0.0] * len(self.ranks), 0.0
        for place in range(1, len(self.ranks)):
            parent = (place - 1) // 2
            ways[place] = ways[parent] + self.seconds(place, parent, size) + self.seconds(parent, place, size)
            if leaves or self.children(place):
                pace = max(pace, ways[place] / (2 * (place + 1).bit_length() - 1))
        return pace

    def loads(self, size: float, *, both_ways: bool) -> dict[int, tuple[float, float]]:
        """By rank: how long one segment occupies it with receiving, and with sending."""
        loads = dict.fromkeys(self.ranks, (0.0, 0.0))

        def move(source: int, target: int, work: float) -> None:
            spent = self.busy(source, target, size)
            (came, went), (arrived, left) = loads[self.ranks[source]], loads[self.ranks[target]]
            loads[self.ranks[source]], loads[self.ranks[target]] = (came, went + spent), (arrived + spent + work, left)

        for place in range(len(self.ranks)):
            for child in self.children(place):
                move(place, child, 0.0)
                if both_ways:
                    move(child, place, size * REDUCE_SECONDS_PER_BYTE)
        return loads


def tree(matrix: LinkMatrix, size: int) -> float:
    """All-reduce: up and down for the first segment; the others follow as fast as the busiest rank lets them."""
    shape, pieces = _Tree(matrix, range(matrix.size)), pieces_of(size)
    part = size / pieces
    pace = max(max(load) for load in shape.loads(part, both_ways=True).values())
    return shape.up(part) + shape.down(part) + (pieces - 1) * max(pace, shape.window(part, leaves=False))


def double_tree(matrix: LinkMatrix, size: int) -> float:
    """All-reduce. Both trees go on at the same time; a rank's work for both adds up."""
    pieces = pieces_of(size / 2)
    part = size / 2 / pieces
    shapes = [_Tree(matrix, range(matrix.size)), _Tree(matrix, range(matrix.size - 1, -1, -1))]
    loads = [shape.loads(part, both_ways=True) for shape in shapes]
    busiest = max(
        max(came + more_came, went + more_went)
        for (came, went), (more_came, more_went) in ((loads[0][rank], loads[1][rank]) for rank in range(matrix.size))
    )
    pace = max(busiest, *(shape.window(part, leaves=True) for shape in shapes))
    first = max(shape.up(part) + shape.down(part) for shape in shapes)
    # When the first segments of both trees meet at a rank, one waits for the other.
    return first + busiest / 2 + (pieces - 1) * pace


def chain_broadcast(matrix: LinkMatrix, size: int, order: Sequence[int]) -> float:
    pieces = pieces_of(size)
    part = size / pieces
    hops = [matrix.link(order[place], order[place + 1]) for place in range(len(order) - 1)]
    first = sum(hop.seconds(part) + TRANSFER_SECONDS for hop in hops)
    return first + (pieces - 1) * max((hop.per_byte * part + TRANSFER_SECONDS for hop in hops), default=0.0)


def tree_broadcast(matrix: LinkMatrix, size: int, ranks: Sequence[int] | None = None) -> float:
    shape, pieces = _Tree(matrix, range(matrix.size) if ranks is None else ranks), pieces_of(size)
    part = size / pieces
    paces = [max(load) for load in shape.loads(part, both_ways=False).values()]
    return shape.down(part) + (pieces - 1) * max(paces)


def inside_hosts(matrix: LinkMatrix, size: int, hosts: Sequence[Sequence[int]]) -> float:
    """The time of a hierarchical all-reduce inside hosts: up before, and down after, the exchange between hosts."""
    pieces = pieces_of(size)
    part = size / pieces
    found = []
    for host in hosts:
        shape = _Tree(matrix, host)
        pace = max(max(load) for load in shape.loads(part, both_ways=False).values())
        found.append(shape.up(part) + shape.down(part) + 2 * (pieces - 1) * pace)
    return max(found)
