"""What a group needs to know of its links before its first operation: measured where that matters, planned always.

`survey` comes first, `told` is the event that explains what came of it.
"""

from __future__ import annotations

from shoal.events import ScheduleChosen
from shoal.links.matrix import Hosts
from shoal.links.measure import measure
from shoal.links.plan import FIXED, Plan, Table, fixed_plan, make_plan
from shoal.transport.mesh import Mesh

MEASURED = ("auto", "ring", "hierarchical")  # schedules that depend on links; of a ring it is the order of its ranks


def survey(mesh: Mesh, schedule: str, hosts: Hosts = (), *, deterministic: bool = False) -> Plan:
    """All ranks of the mesh call it before anything else travels there, and all get the same plan.

    `hosts`: the ranks of each host, in the same order on every rank, where they are to be treated as one. One host
    alone has no links. `deterministic`: nothing is measured. Raises `PeerLost` and `Aborted` as every use of a mesh.
    """
    if deterministic or mesh.size < 2 or len(hosts) == 1 or schedule not in MEASURED:
        return fixed_plan(hosts)
    return make_plan(measure(mesh, hosts), hosts)


def told(plan: Plan, generation: int, setting: str, in_memory: Hosts = (), *, memory: str = "") -> ScheduleChosen:
    """`setting`: what the job was asked to take. `in_memory`: all hosts, where ranks of one reduce in its memory;
    `memory`: what was found out about that, or why there is no such host."""
    table, reason, asked = plan.all_reduce, plan.reason, f"asked for with --schedule {setting}; "
    if len(in_memory) == 1:
        table = Table((0,), ("memory",))
        reason = f"all {len(in_memory[0])} ranks share one machine's memory; {memory or plan.reason}"
    elif in_memory:
        table = Table((0,), ("hierarchical",))
        reason = f"memory inside each of {len(in_memory)} machines, between them {(plan.between or FIXED).reason}"
    elif setting != "auto":
        table = Table((0,), (setting,))
        reason = f"auto would take {plan.reason}" if plan.seconds else plan.reason
    if memory and not in_memory:
        reason = f"{memory}; {reason}"
    return ScheduleChosen(
        generation=generation,
        setting=setting,
        ranges=tuple(zip(table.least, table.schedules, strict=True)),
        order=() if in_memory else plan.order,
        seconds=plan.seconds,
        reason=reason if setting == "auto" else asked + reason,
    )
