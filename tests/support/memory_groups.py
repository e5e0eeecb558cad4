"""Groups through shared memory, between threads of one process, in each of the ways that bytes can take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.assembly import GroupConfig, SubMesh, group_over
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.collectives.memory.memory_loops import MemoryWays
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.scheduled_exchanger import ScheduledExchanger
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.transport.memory.neighbours import Neighbourhood, form
from shoal.transport.memory.team import Team
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.mesh.mesh_exchange import exchange_over
from shoal.transport.native import native

WAYS = {
    "memory": MemoryWays(reads_memory=True, is_native=True),
    "memory-reading": MemoryWays(reads_memory=True, is_native=True, reads_to_reduce=True),
    "memory-slots": MemoryWays(reads_memory=False, is_native=True),
    "memory-python": MemoryWays(reads_memory=True, is_native=False),
    "memory-python-reading": MemoryWays(reads_memory=True, is_native=False, reads_to_reduce=True),
    "memory-python-slots": MemoryWays(reads_memory=False, is_native=False),
}
if native is None:  # the same contract, in Python alone
    WAYS = {name: ways for name, ways in WAYS.items() if not ways.is_native}
MEMORY_KINDS = [(name, "auto") for name in (*WAYS, "two-level")]


def neighbourhoods(meshes: list[Mesh], hosts: list[list[int]]) -> list[Neighbourhood]:
    """As if each list of ranks were a machine of its own."""
    from support.collectives import succeed

    def join(rank: int) -> Neighbourhood:
        home = next(host for host in hosts if rank in host)
        part = SubMesh(meshes[rank], home)
        hood = form(exchange_over(part, 1), part.rank, part.size)
        return replace(hood, hosts=tuple(tuple(host) for host in hosts))

    return succeed(*(lambda rank=rank: join(rank) for rank in range(len(meshes))))


@contextmanager
def teams(size: int) -> Iterator[list[Team]]:
    made = [hood.team for hood in neighbourhoods(list(in_process_meshes(size)), [list(range(size))])]
    try:
        yield [team for team in made if team is not None]
    finally:
        for team in made:
            if team is not None:
                team.close()


@contextmanager
def memory_groups(kind: str, size: int, codec: Callable[[], Codec] = Identity) -> Iterator[list[ThreadedGroup]]:
    from support.collectives import succeed

    meshes: list[Mesh] = list(in_process_meshes(size))
    if kind == "two-level":
        hosts = [list(range(size))[start : start + 3] for start in range(0, size, 3)]  # the last may be smaller
        hoods = neighbourhoods(meshes, hosts)
        each = [(mesh, hood, GroupConfig(codec=codec())) for mesh, hood in zip(meshes, hoods, strict=True)]
        made = succeed(*(lambda given=given: group_over(*given) for given in each))  # they measure together
    else:
        hoods = neighbourhoods(meshes, [list(range(size))])
        made = [_group(mesh, hood, WAYS[kind]) for mesh, hood in zip(meshes, hoods, strict=True)]
    try:
        yield made
    finally:
        for group in made:
            group.abort("the test is over")
        for group in made:
            group.close()


def _group(mesh: Mesh, hood: Neighbourhood, ways: MemoryWays) -> ThreadedGroup:
    post = ScheduledExchanger(mesh, Chooser("auto", mesh.size, mesh.rank), Identity(), 1)
    if hood.team is None:
        return ThreadedGroup.over(None, 1, "auto", Identity())
    return ThreadedGroup(MemoryExchanger(hood.team, ways, 1), 1, post=post)
