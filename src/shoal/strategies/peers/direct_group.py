"""A generation's group over a mesh of its workers: who shares a machine, which links there are, what moves the tensors.

Rank 0 reports what was found and chosen. Not here: connecting the mesh (`cluster_peers`), and the kinds of groups
(`groups`, `collectives.assembly`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.codecs.codec import Codec
from shoal.collectives.assembly import GroupConfig, group_over
from shoal.collectives.carriers.gpu_facts import current_gpu, facts_of, own_facts
from shoal.collectives.gpu.carrier_choice import CarrierChoice, choose_carrier
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.events import AnyEvent, CarrierChosen
from shoal.links.host_links import between_hosts
from shoal.links.measure import survey, told
from shoal.links.plan import IN_RANK_ORDER
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.strategies.peers.groups import Brake, make_exchanger
from shoal.transport.memory.neighbours import Neighbourhood, form
from shoal.transport.memory.team import Team, TeamLimits
from shoal.transport.mesh.faults import LinkFaults
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.mesh.mesh_exchange import exchange_over
from shoal.values import Generation, Member


@dataclass(frozen=True)
class DirectGroupConfig:
    settings: AllReduceSettings
    stopped_limit: float  # seconds after which a process that is stopped counts as lost
    codec: Codec
    host: str  # an address of this rank that the others can reach
    faults: LinkFaults
    report: Callable[[AnyEvent], None]
    hold: Callable[[Team | None], None]  # told of the team while the group is being put together: it may be given up

    def terms(self, generation: Generation) -> GroupConfig:
        return GroupConfig(
            generation=generation.number,
            schedule=generation.schedule,
            codec=self.codec,
            deterministic=self.settings.deterministic,
            limits=TeamLimits(stopped=self.stopped_limit),
            address=self.host,
        )


def direct_group(mesh: Mesh, generation: Generation, config: DirectGroupConfig) -> ThreadedGroup:
    """All ranks of the mesh call it. The group owns the mesh from now on; if this fails, the caller still does."""
    names = {member.rank: _name(member) for member in generation.members}
    carrier = config.settings.carrier
    if carrier != "shoal" and mesh.size > 1:
        exchanger = make_exchanger(carrier, mesh, generation.number, config.host)
        if mesh.rank == 0:
            asked = f"asked for with --carrier {carrier}"
            config.report(_carrier(generation, CarrierChoice(carrier, asked), is_asked=True))
        return ThreadedGroup(exchanger, generation.number, post=exchanger, names=names)
    hood = form(exchange_over(mesh, generation.number), mesh.rank, mesh.size, own_facts(current_gpu()))
    config.hold(hood.team)
    try:
        group = _own_group(mesh, hood, generation, replace(config.terms(generation), names=names), config.report)
    except BaseException:
        if hood.team is not None:
            hood.team.close()
        raise
    finally:
        config.hold(None)
    if hood.team is not None:
        group.brake = Brake(config.faults, generation, mesh.rank)
    return group


def _own_group(
    mesh: Mesh, hood: Neighbourhood, generation: Generation, terms: GroupConfig, report: Callable[[AnyEvent], None]
) -> ThreadedGroup:
    """The group over Shoal's own transport, with NCCL for tensors of GPUs where every rank can use it."""
    gpus = facts_of(hood.remarks)
    choice = choose_carrier(gpus, machines=len(hood.hosts), kept=terms.why_own(hood))
    in_memory = terms.hosts_by_memory(hood)
    if terms.sums_in_rank_order(hood):
        plan = IN_RANK_ORDER
    else:
        plan = survey(mesh, generation.schedule, in_memory, deterministic=terms.deterministic)
    group = group_over(mesh, hood, replace(terms, plan=plan, choice=choice))
    if mesh.rank == 0:
        report(told(plan, generation.number, generation.schedule, in_memory, memory=group.why))
        if (links := between_hosts(plan.matrix, hood.hosts, generation)) is not None:
            report(links)
        if mesh.size > 1 and any(rank.gpu for rank in gpus):
            report(_carrier(generation, choice, is_asked=False))
    return group


def _carrier(generation: Generation, choice: CarrierChoice, *, is_asked: bool) -> CarrierChosen:
    return CarrierChosen(generation=generation.number, carrier=choice.carrier, is_asked=is_asked, reason=choice.reason)


def _name(member: Member) -> str:
    return f"worker {member.worker} on {member.host}, process {member.process}"
