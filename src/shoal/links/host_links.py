"""The links between hosts among those that were measured, as an event for people. Pure.

Two hosts are told once for each direction, by the lowest ranks that measured it. Between hosts one flow crosses the
network, so those figures are what training gets there.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.events import LinksMeasured
from shoal.links.matrix import Hosts, Link, LinkMatrix
from shoal.values import Generation, HostLink, Member

MOST_LINKS = 64  # in an event: the slowest ones
TYPICAL_BYTES = 1024 * 1024  # how long they take orders the links


def between_hosts(matrix: LinkMatrix | None, hosts: Hosts, generation: Generation) -> LinksMeasured | None:
    """`hosts`: the ranks of each machine, all ranks once. None: there is one machine, or no such link was measured."""
    if matrix is None or len(hosts) < 2:
        return None
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    found: dict[tuple[int, int], tuple[int, int]] = {}  # by hosts: the ranks that measured
    for source, target in sorted(matrix.measured):
        if host_of[source] != host_of[target]:
            found.setdefault((host_of[source], host_of[target]), (source, target))
    if not found:
        return None
    ordered = sorted(found.values(), key=lambda ends: (-matrix.link(*ends).seconds(TYPICAL_BYTES), ends))
    return LinksMeasured(
        generation=generation.number,
        hosts=len(hosts),
        links=tuple(_told(ends, matrix.link(*ends), generation.members) for ends in ordered[:MOST_LINKS]),
        measured=len(found),
        seconds=matrix.seconds,
    )


def _told(ends: tuple[int, int], link: Link, members: Sequence[Member]) -> HostLink:
    source, target = (members[rank] for rank in ends)
    return HostLink(
        source=source.worker,
        target=target.worker,
        source_host=source.host,
        target_host=target.host,
        latency=link.latency,
        bandwidth=link.bandwidth,
    )
