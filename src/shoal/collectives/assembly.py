"""Puts a group together: which exchanger serves ranks of one machine, and which serves ranks of several.

all on one machine               memory
several machines                 memory inside, schedules between the first ranks of the machines
a forced schedule                that schedule over the mesh, among all ranks
several machines, deterministic  a chain over the mesh, among all ranks: it has the same bits as memory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.exchanger import Exchanger
from shoal.collectives.gpu.carrier_choice import CarrierChoice
from shoal.collectives.gpu.gpu_way import GpuTerms
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.collectives.memory.memory_loops import MemoryWays, small_for
from shoal.collectives.memory.memory_probe import best_ways
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.scheduled_exchanger import ScheduledExchanger
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.collectives.two_level_exchanger import TwoLevelExchanger
from shoal.links.plan import LinkPlan
from shoal.transport.memory.neighbours import Neighbourhood
from shoal.transport.memory.team import TeamLimits
from shoal.transport.mesh.mesh import Mesh

LOOPBACK = "127.0.0.1"
BY_MEMORY = ("auto", "hierarchical")  # schedules with which ranks of one machine use shared memory


@dataclass(frozen=True)
class GroupConfig:
    """The settings of a group, the same on every rank."""

    generation: int = 1
    schedule: str = "auto"
    plan: LinkPlan | None = None  # from the measured links
    codec: Codec = field(default_factory=Identity)  # between machines; inside a machine nothing is encoded
    deterministic: bool = False  # measure nothing; unless a codec changes values, sum in the order of the ranks
    limits: TeamLimits = field(default_factory=TeamLimits)
    names: Mapping[int, str] = field(default_factory=dict)  # of ranks, for errors
    address: str = LOOPBACK  # of this rank, which the others can reach; where all share memory, loopback will do
    choice: CarrierChoice | None = None  # what moves the tensors of GPUs, if that is decided already

    def sums_in_rank_order(self, hood: Neighbourhood) -> bool:
        """Whether ranks of several machines sum along a chain, for the same bits as in the memory of one."""
        return self.deterministic and self.schedule == "auto" and self.codec.raw and len(hood.hosts) > 1

    def hosts_by_memory(self, hood: Neighbourhood) -> tuple[tuple[int, ...], ...]:
        """Ranks by machine if the ranks of a machine reduce in its memory; else empty."""
        is_by_memory = self.schedule in BY_MEMORY and any(len(host) > 1 for host in hood.hosts)
        return hood.hosts if is_by_memory and not self.sums_in_rank_order(hood) else ()

    def why_own(self, hood: Neighbourhood) -> str:
        """Why tensors of GPUs stay with Shoal's own transport, whatever GPUs there are; empty: they need not."""
        if self.schedule != "auto":
            return f"--schedule {self.schedule} is one of Shoal's own transport"
        if self.deterministic:
            return "--deterministic sums in the order of the ranks, which Shoal's own transport does"
        if not self.codec.raw and len(hood.hosts) > 1:
            return f"--codec {self.codec.name} encodes what Shoal's own transport carries between machines"
        return ""

    def gpu_terms(self, hood: Neighbourhood) -> GpuTerms:
        return GpuTerms(len(hood.hosts), self.address, self.why_own(hood), self.choice)


def group_over(mesh: Mesh, hood: Neighbourhood, config: GroupConfig) -> ThreadedGroup:
    """A group over a mesh of all ranks. The group owns mesh and neighbourhood from now on."""
    chooser = Chooser(config.schedule, mesh.size, mesh.rank, config.plan)
    everybody = ScheduledExchanger(mesh, chooser, config.codec, config.generation)
    everybody.why = hood.why_not_shared
    exchanger: Exchanger = everybody
    if not config.hosts_by_memory(hood):
        if hood.team is not None:
            hood.team.close()
    elif len(hood.hosts) == 1:
        exchanger = memory_exchanger(hood, mesh.rank, config)
    else:
        inside = None if hood.team is None else memory_exchanger(hood, mesh.rank, config)
        exchanger = TwoLevelExchanger(hood.hosts, inside, _between(mesh, hood, config), everybody)
    if config.plan is not None:
        exchanger.least_bytes = config.plan.least_bytes
    terms = config.gpu_terms(hood)
    return ThreadedGroup(exchanger, config.generation, post=everybody, names=config.names, gpu=terms)


def group_in_memory(hood: Neighbourhood, rank: int, config: GroupConfig) -> ThreadedGroup:
    """A group whose ranks are all on one machine, without a mesh: it has no sends and receives."""
    terms = config.gpu_terms(hood)
    return ThreadedGroup(memory_exchanger(hood, rank, config), config.generation, names=config.names, gpu=terms)


def memory_exchanger(hood: Neighbourhood, rank: int, config: GroupConfig) -> MemoryExchanger:
    """The exchanger among the ranks of this machine; there must be several."""
    assert hood.team is not None
    hood.team.limits = config.limits
    small, ranks = small_for(hood.team.size), hood.host_of(rank)
    ways = MemoryWays(reads_memory=hood.reads_memory, is_native=hood.is_native, small=small)
    if config.deterministic:
        why = "nothing is measured: large tensors go through shared slots"
    else:
        with torch.inference_mode():
            ways, why = best_ways(hood.team, ways, ranks)
    exchanger = MemoryExchanger(hood.team, ways, config.generation, ranks)
    exchanger.why = why
    return exchanger


def _between(mesh: Mesh, hood: Neighbourhood, config: GroupConfig) -> ScheduledExchanger | None:
    """The exchanger among the first ranks of the machines; None on other ranks."""
    leaders = [host[0] for host in hood.hosts]
    if mesh.rank not in leaders:
        return None
    part = SubMesh(mesh, leaders)
    plan = None if config.plan is None else config.plan.between
    return ScheduledExchanger(part, Chooser("auto", part.size, part.rank, plan), config.codec, config.generation)


class SubMesh(Mesh):
    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        """`ranks`: some ranks of the mesh, including its own."""
        self._mesh = mesh
        self._ranks = list(ranks)
        self._places = {rank: place for place, rank in enumerate(self._ranks)}
        self._look: Callable[[Mapping[int, bytes]], None] | None = None
        self.rank = self._ranks.index(mesh.rank)
        self.size = len(self._ranks)

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted by the whole mesh
        return self._mesh.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted by the whole mesh
        return self._mesh.idle_seconds

    @property
    def on_stall(self) -> Callable[[Mapping[int, bytes]], None] | None:
        return self._look

    @on_stall.setter
    def on_stall(self, look: Callable[[Mapping[int, bytes]], None] | None) -> None:
        self._look = look
        self._mesh.on_stall = None if look is None else self._look_among_some

    def _look_among_some(self, heads: Mapping[int, bytes]) -> None:
        assert self._look is not None
        self._look({self._places[rank]: head for rank, head in heads.items() if rank in self._places})

    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        self._mesh.post(self._ranks[peer], header, *payloads)

    def receive_into(self, peer: int, buffer: memoryview) -> None:
        self._mesh.receive_into(self._ranks[peer], buffer)

    def drain(self) -> None:
        self._mesh.drain()

    def check(self) -> None:
        self._mesh.check()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """`blamed`: a rank of the whole mesh, like the ranks in all errors raised here."""
        self._mesh.abort(reason, blamed=blamed)

    def close(self) -> None:
        pass
