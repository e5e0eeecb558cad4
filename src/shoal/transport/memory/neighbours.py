"""Which ranks of a group share this machine's memory, and what they may do with it: proved and agreed by all.

Every rank offers an arena and tries to open all other ranks' arenas. Ranks that can all see each other, and are in one
network namespace (somebody drew that border on purpose), are neighbours. Then each rank tries to read its neighbours'
private memory. The caller provides `exchange`, which gives every rank's bytes to every rank, in order of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from shoal.bounds import Members, Ordinal, Total
from shoal.errors import PeerLost, WireError
from shoal.transport.memory import cross_memory, futex, memory_order
from shoal.transport.memory.arena import NONCE_BYTES, Arena, Offer, PeerArena, address_of
from shoal.transport.memory.team import ARENA_BYTES, MOST_RANKS, Team, in_group_ranks
from shoal.transport.native import native

Said = TypeVar("Said")
Exchange = Callable[[bytes], list[bytes]]
MOST_REMARK = 1 << 16  # bytes of one rank's remark


class _Introduction(msgspec.Struct, frozen=True):
    """What a rank says about itself."""

    offer: Offer | None  # None: it has no shared memory
    parent: Ordinal  # process
    has_native: bool
    address: Total  # of the nonce in the rank's private memory, which others try to read
    remark: Annotated[bytes, Meta(max_length=MOST_REMARK)] = b""  # what the caller has to say


class _Findings(msgspec.Struct, frozen=True):
    """What a rank has found out."""

    visible: Members[Ordinal]  # ranks whose arenas it could open, and itself
    readable: bool  # it could read the private memory of all these ranks


@dataclass(frozen=True)
class Neighbourhood:
    """The ranks of a group by machine."""

    hosts: tuple[tuple[int, ...], ...]  # ranks that share a machine; in order of their first ranks
    team: Team | None  # of the ranks on this machine; None: there is no other rank on it
    reads_memory: bool  # the team's members may read each other's private memory
    is_native: bool  # all the team's members have the C extension
    why_not_shared: str = ""  # why this rank shares no memory with any other; set only if its processor is the reason
    remarks: tuple[bytes, ...] = ()  # of all ranks

    def host_of(self, rank: int) -> tuple[int, ...]:
        return next(host for host in self.hosts if rank in host)


def form(exchange: Exchange, rank: int, size: int, remark: bytes = b"") -> Neighbourhood:
    """Called by all ranks of a group. `remark`: bytes that all ranks are told besides, in the same exchange."""
    is_possible = futex.is_available() and not memory_order.why_not
    own = Arena.create(ARENA_BYTES) if is_possible and size > 1 else None
    secret = bytearray(own.offer.nonce if own else NONCE_BYTES)  # in private memory, which others try to read
    introduction = _Introduction(
        own.offer if own else None, os.getppid(), native is not None, address_of(secret), remark
    )
    told = [_decode(data, _Introduction) for data in exchange(msgspec.msgpack.encode(introduction))]
    peers = _open(own, told, rank)
    try:
        if len({one.parent for one in told}) == 1:
            cross_memory.allow(told[rank].parent)  # the parent and its descendants, and nobody else
        visible = tuple(peer for peer in range(size) if peer == rank or peers[peer] is not None)
        exchange(b"")  # all ranks have allowed their neighbours before any rank tries to read
        readable = all(_is_readable(told[peer]) for peer in visible if peer != rank)
        findings = _Findings(visible, readable)
        found = [_decode(data, _Findings) for data in exchange(msgspec.msgpack.encode(findings))]
        hosts = partition([one.visible for one in found])
    except BaseException:
        _close(own, peers)
        raise
    hood = _assemble(own, peers, told, (rank, hosts, found))
    return replace(hood, remarks=tuple(one.remark for one in told))


def partition(visible: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Ranks by machine: all ranks of a machine see each other. `visible`: by rank, the ranks that it sees. Pure."""
    hosts: list[list[int]] = []
    places: dict[int, int] = {}  # by rank: the number of its host
    for rank in range(len(visible)):
        seen = frozenset(visible[rank])
        places[rank] = len(hosts)
        for place in sorted({places[other] for other in seen if other < rank}):
            host = hosts[place]
            is_mutual = all(rank in visible[other] and other in seen for other in host)
            if is_mutual and len(host) < MOST_RANKS:
                host.append(rank)
                places[rank] = place
                break
        else:
            hosts.append([rank])
    return tuple(tuple(host) for host in hosts)


def _open(own: Arena | None, told: Sequence[_Introduction], rank: int) -> list[PeerArena | None]:
    peers: list[PeerArena | None] = []
    for peer, one in enumerate(told):
        is_own = own is None or peer == rank
        arena = None if is_own or one.offer is None else PeerArena.open(one.offer)
        if arena is not None and one.offer is not None and not shares_network(one.offer.process):
            arena.close()
            arena = None
        peers.append(arena)
    return peers


def shares_network(process: int) -> bool:
    """Whether the process is in this one's network namespace, a border that somebody drew on purpose."""
    try:
        return Path(f"/proc/{process:d}/ns/net").stat().st_ino == Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return False


def _assemble(
    own: Arena | None,
    peers: list[PeerArena | None],
    told: Sequence[_Introduction],
    place: tuple[int, tuple[tuple[int, ...], ...], Sequence[_Findings]],
) -> Neighbourhood:
    rank, hosts, found = place
    host = next(host for host in hosts if rank in host)
    for peer, arena in enumerate(peers):
        if arena is not None and peer not in host:
            arena.close()
            peers[peer] = None
    if own is None or len(host) == 1:
        _close(own, peers)
        why = memory_order.why_not if own is None else ""
        return Neighbourhood(hosts, None, reads_memory=False, is_native=False, why_not_shared=why)
    own.withdraw()  # all ranks have opened it: the last exchange proves that
    processes = [one.offer.process if one.offer is not None else -1 for one in told]
    try:
        team = Team(host.index(rank), own, [peers[peer] for peer in host], [processes[peer] for peer in host])
    except PeerLost as lost:  # a rank sent its findings and then died
        _close(own, peers)
        raise in_group_ranks(lost, host) from None
    return Neighbourhood(
        hosts,
        team,
        reads_memory=all(found[peer].readable for peer in host),
        is_native=all(told[peer].has_native for peer in host),
    )


def _is_readable(one: _Introduction) -> bool:
    if one.offer is None:
        return False
    buffer = bytearray(NONCE_BYTES)
    try:
        cross_memory.read(one.offer.process, one.address, address_of(buffer), NONCE_BYTES)
    except OSError:
        return False
    return bytes(buffer) == one.offer.nonce


def _close(own: Arena | None, peers: Sequence[PeerArena | None]) -> None:
    for arena in (own, *peers):
        if arena is not None:
            arena.close()


def _decode(data: bytes, kind: type[Said]) -> Said:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(
            f"a rank introduced itself with {len(data)} bytes that are no {kind.__name__}: {error}"
        ) from None
