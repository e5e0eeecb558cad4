"""What is known of the links between all ranks: latency and bandwidth of each direction of each pair. Pure.

A link costs `latency + size * per_byte` seconds for a message of `size` bytes. Not here: how it is measured
(`measure`), and what follows from it (`cost`, `plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import msgspec

Hosts = tuple[tuple[int, ...], ...]  # the ranks of each host, all ranks once


class Link(msgspec.Struct, frozen=True, array_like=True):
    """One direction of a pair."""

    latency: float  # seconds until the first byte is there, with the work of both processes
    per_byte: float  # seconds

    def seconds(self, size: float) -> float:
        return self.latency + size * self.per_byte

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1.0 / self.per_byte


GAP = 2.0  # between figures of links that are really different; a repeated measurement varies by less
UNKNOWN = Link(100e-6, 1e-9)  # assumed for all links when not one was measured


class LinkMatrix(msgspec.Struct, frozen=True):
    """All links of a generation. The same on every rank, bit for bit, so that all choose alike."""

    rows: tuple[tuple[Link, ...], ...]  # rows[i][j]: from rank i to rank j; rows[i][i] is unused
    seconds: float = 0.0  # that measuring took
    measured: tuple[tuple[int, int], ...] = ()  # directions that were measured; for the others `rows` has assumptions

    @property
    def size(self) -> int:
        return len(self.rows)

    def link(self, source: int, target: int) -> Link:
        return self.rows[source][target]

    def among(self, ranks: Sequence[int]) -> LinkMatrix:
        """The links of some ranks, which become ranks 0, 1, 2, ..."""
        rows = tuple(tuple(self.rows[source][target] for target in ranks) for source in ranks)
        places = {rank: place for place, rank in enumerate(ranks)}
        measured = ((places[a], places[b]) for a, b in self.measured if a in places and b in places)
        return LinkMatrix(rows, self.seconds, tuple(measured))

    def links(self) -> list[Link]:
        return [self.rows[source][target] for source, target in permutations(range(self.size), 2)]

    def levelled(self) -> LinkMatrix:
        """The matrix with links made equal that differ by chance, separately for latencies and bandwidths.

        Sorted figures that differ by less than a factor of `GAP` from the next form a level, and become its median.
        """
        latency = _levels([link.latency for link in self.links()])
        per_byte = _levels([link.per_byte for link in self.links()])
        return LinkMatrix(
            tuple(
                tuple(
                    link if source == target else Link(latency[link.latency], per_byte[link.per_byte])
                    for target, link in enumerate(row)
                )
                for source, row in enumerate(self.rows)
            ),
            self.seconds,
            self.measured,
        )

    @property
    def text(self) -> str:
        """For people: '4 ranks, latency 28 to 41 us, 1.9 to 3.8 GB/s'."""
        links = self.links()
        if not links:
            return "1 rank, no links"
        latencies = sorted(1e6 * link.latency for link in links)
        speeds = sorted(link.bandwidth / 1e9 for link in links)
        return (
            f"{self.size} ranks, latency {_span(latencies[0], latencies[-1])} us, {_span(speeds[0], speeds[-1])} GB/s"
        )


def _levels(figures: Sequence[float]) -> dict[float, float]:
    """For each figure, the median of its level."""
    ordered = sorted(figures)
    levels: list[list[float]] = []
    for figure in ordered:
        if levels and figure <= GAP * levels[-1][-1]:
            levels[-1].append(figure)
        else:
            levels.append([figure])
    return {figure: level[len(level) // 2] for level in levels for figure in level}


def _span(least: float, most: float) -> str:
    low, high = f"{least:.3g}", f"{most:.3g}"
    return low if low == high else f"{low} to {high}"


def uniform(size: int, link: Link) -> LinkMatrix:
    """A matrix whose links are all alike."""
    return LinkMatrix(((link,) * size,) * size)


def completed(size: int, found: Mapping[tuple[int, int], Link], hosts: Hosts = ()) -> LinkMatrix:
    """A matrix from the measured links. A link that was not measured counts as equal to a measured link between the
    same two hosts, if there is one; otherwise as the slowest link at either of its ends, or anywhere."""
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    between = {(host_of[source], host_of[target]): link for (source, target), link in found.items()} if hosts else {}
    at: dict[int, list[Link]] = {rank: [] for rank in range(size)}
    for ends, link in found.items():
        for rank in ends:
            at[rank].append(link)
    anywhere = _slowest([*found.values()] or [UNKNOWN])
    slowest = [_slowest(at[rank] or [anywhere]) for rank in range(size)]

    def link_of(source: int, target: int) -> Link:
        if (known := found.get((source, target))) is not None:
            return known
        if hosts and (known := between.get((host_of[source], host_of[target]))) is not None:
            return known
        return _slowest([slowest[source], slowest[target]])

    rows = tuple(tuple(link_of(source, target) for target in range(size)) for source in range(size))
    return LinkMatrix(rows, measured=tuple(sorted(found)))


def _slowest(links: Sequence[Link]) -> Link:
    """A link with the worst latency and the worst bandwidth of these."""
    return Link(max(link.latency for link in links), max(link.per_byte for link in links))
