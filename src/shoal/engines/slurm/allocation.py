"""What a Slurm allocation has, from the variables that Slurm sets, and the command that asks for one. Pure.

Not here: calling Slurm's programs (`slurm_programs`, `held_allocation`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.engines import texts
from shoal.errors import UsageError

JOB, NODES, RESTARTS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT"
LONGEST_WARNING = 90  # seconds before the end of its time at which an allocation is warned
MOST_SLOTS = 256  # of a node: as many as one machine starts and watches
# The only SLURM_ variables that `srun` gets: it would read the others as options, and an agent needs none of them.
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_WORKING_CLUSTER")


@dataclass(frozen=True)
class AllottedNode:
    name: str
    slots: int  # workers that it takes


@dataclass(frozen=True)
class Allocation:
    job: str  # its number
    nodes: tuple[AllottedNode, ...]


@dataclass(frozen=True)
class Wish:
    """What to ask Slurm for."""

    fewest: int  # nodes
    most: int
    workers: int
    threads: int  # of each worker; 0: one
    seconds: int  # that the allocation lasts; 0: as long as the cluster allows
    time: str  # the same as Slurm writes it; empty for 0
    options: tuple[str, ...] = ()  # further ones of salloc


def job_in(variables: Mapping[str, str]) -> str:
    """The number of the allocation that a process with these variables is in; empty: none."""
    return variables.get(JOB, "") if variables.get(NODES) else ""


def allocation_in(variables: Mapping[str, str], names: Sequence[str]) -> Allocation:
    """`names` are those of its nodes, in Slurm's order. Raises `UsageError` if the variables do not fit them."""
    slots = _slots(variables, len(names))
    if len(slots) != len(names):
        raise UsageError(texts.odd_allocation(variables.get(JOB, ""), len(names), len(slots)))
    return Allocation(variables[JOB], tuple(map(AllottedNode, names, slots)))


def _slots(variables: Mapping[str, str], nodes: int) -> list[int]:
    """By node: its tasks, if the user has said how many there are; otherwise its GPUs, or the cores that it gives."""
    if variables.get("SLURM_NTASKS") or variables.get("SLURM_NTASKS_PER_NODE"):
        counts = _repeated(variables.get("SLURM_TASKS_PER_NODE", ""))
    elif gpus := re.search(r"([0-9]+)$", variables.get("SLURM_GPUS_PER_NODE", "")):
        counts = [int(gpus[1])] * nodes
    else:
        counts = _repeated(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return [min(MOST_SLOTS, max(1, count)) for count in counts]


def _repeated(text: str) -> list[int]:
    """Slurm's way to write a number for each node: `4(x2),1` is 4, 4, 1. Empty if it is written in another way."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def salloc_command(salloc: str, wish: Wish, holder: Sequence[str]) -> tuple[str, ...]:
    """Ask for room for all workers, even on the fewest nodes. The allocation lasts as long as `holder` runs.

    The loss of a node does not end the allocation, and its end ends `holder`. A moment before its time is over, Slurm
    sends SIGTERM to everything that runs there.
    """
    nodes = f"{wish.fewest}" if wish.fewest == wish.most else f"{wish.fewest}-{wish.most}"
    warning = max(1, min(LONGEST_WARNING, wish.seconds // 10))
    timed = (f"--time={wish.time}", f"--signal=TERM@{warning}") if wish.time else ()
    return (
        *(salloc, f"--nodes={nodes}", f"--ntasks-per-node={-(-wish.workers // wish.fewest)}"),
        *(f"--cpus-per-task={max(1, wish.threads)}", "--job-name=shoal", "--no-kill", "--kill-command=TERM"),
        *(*timed, *wish.options, *holder),
    )


def srun_command(srun: str, allocation: str, node: str, command: Sequence[str]) -> tuple[str, ...]:
    """A step for one node: its loss ends no other. It has all that the allocation has on that node.

    Its only task is bound to no core: it starts workers, which use all of them.
    """
    return (
        *(srun, f"--jobid={allocation}", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--no-kill"),
        *("--immediate=60", "--export=ALL", "--cpu-bind=none", "--job-name=shoal", *command),
    )


def srun_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The launcher's, without those that srun would take for options."""
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith(("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")) or name in KEPT
    }
