"""Which servers hold which block: consistent hashing with virtual nodes and bounded load. Pure.

Every server has many points on a ring and every block has one; a block belongs to the servers that follow it clockwise,
as many distinct ones as there are replicas. A server that has its share already is passed over, so that shares are even
although there are only some tens of blocks per server. Adding or removing one of n servers moves about 1/n of all
bytes. Every process computes the same from sizes, server numbers and replicas alone. Not here: which holder is asked
(`placement`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

POINTS_PER_SERVER = 256  # virtual nodes; with far fewer, more blocks overflow and then move when servers change
SLACK = 1.07  # most that a server holds, relative to the mean; less slack moves more blocks when servers change

Points = npt.NDArray[np.uint64]


def _points(of: str, count: int) -> Points:
    """The first `count` of a fixed sequence of places on the ring."""
    return np.frombuffer(hashlib.shake_128(of.encode()).digest(8 * count), dtype="<u8").astype(np.uint64)


@functools.lru_cache(maxsize=64)
def _server_points(server: int) -> Points:
    return _points(f"server {server}", POINTS_PER_SERVER)


def _ring(servers: Sequence[int]) -> tuple[Points, list[int]]:
    """Places in clockwise order, and the server of each."""
    places = np.concatenate([_server_points(server) for server in servers])
    owners = np.repeat(np.array(servers, dtype=np.int64), POINTS_PER_SERVER)
    order = np.lexsort((owners, places))
    return places[order], owners[order].tolist()


class _Walk:
    """Servers in the order in which they follow a place, each once; found lazily."""

    def __init__(self, owners: Sequence[int], start: int) -> None:
        self._owners = owners
        self._place = start  # the next to look at
        self._end = start + len(owners)
        self._found: list[int] = []

    def __iter__(self) -> Iterator[int]:
        yield from self._found
        owners, found = self._owners, self._found
        while self._place < self._end:
            owner = owners[self._place % len(owners)]
            self._place += 1
            if owner not in found:
                found.append(owner)
                yield owner


class _Loads:
    """Bytes of each server while blocks are placed."""

    def __init__(self, sizes: Sequence[int], servers: Sequence[int]) -> None:
        self._bytes = dict.fromkeys(servers, 0)
        self._mean = sum(sizes) / len(servers)
        self._largest = max(sizes)

    def limit(self, replica: int) -> float:
        """Most bytes of a server when this replica of each block, and those before it, are placed."""
        return max(SLACK * self._mean * (replica + 1), self._largest)

    def add(self, walk: _Walk, chain: list[int], size: int, limit: float) -> None:
        """Choose the first server with room; if none has room (blocks too large for even shares), the emptiest."""
        room = limit - size
        for server in walk:
            if self._bytes[server] <= room and server not in chain:
                break
        else:
            server = min((one for one in walk if one not in chain), key=self._bytes.__getitem__)
        chain.append(server)
        self._bytes[server] += size


@functools.lru_cache(maxsize=64)
def _chains(sizes: tuple[int, ...], servers: tuple[int, ...], replicas: int) -> tuple[tuple[int, ...], ...]:
    places, owners = _ring(servers)
    blocks = _points("block", len(sizes))
    starts = np.searchsorted(places, blocks)
    # Place the blocks nearest to their server first: the blocks that find their server full are then mostly the same
    # ones when the set of servers changes.
    gaps = places[starts % len(owners)] - blocks  # wraps around as the ring does
    order: list[int] = np.argsort(gaps, kind="stable").tolist()
    walks = [_Walk(owners, start) for start in starts.tolist()]
    loads = _Loads(sizes, servers)
    chains: list[list[int]] = [[] for _ in sizes]
    for replica in range(min(replicas, len(servers))):
        limit = loads.limit(replica)
        for block in order:
            loads.add(walks[block], chains[block], sizes[block], limit)
    return tuple(map(tuple, chains))


def chains(sizes: Sequence[int], servers: Sequence[int], replicas: int) -> tuple[tuple[int, ...], ...]:
    """For each block, given its bytes: the distinct servers that hold it, the first one first.

    Fewer than `replicas` if there are fewer servers. The order in which servers are given does not matter.
    """
    if not servers or replicas < 1:
        raise ValueError(f"{len(servers)} servers and {replicas} replicas: at least one of each is needed")
    if not sizes:
        return ()
    return _chains(tuple(sizes), tuple(sorted(set(servers))), replicas)
