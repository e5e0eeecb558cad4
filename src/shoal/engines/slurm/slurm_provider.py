"""Agents in a Slurm allocation: a step of its own for each node, started by `srun`, which stays with it.

Not here: the allocation itself (`allocation`, `held_allocation`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from shoal.engines import texts
from shoal.engines.nodes.agent_programs import NO_SHOAL, AgentProgram, AgentPrograms
from shoal.engines.nodes.provider import AGENT, AGENT_HAS_NO_WAY, NodeGone
from shoal.engines.slurm.allocation import Allocation, srun_command, srun_variables
from shoal.engines.slurm.held_allocation import HeldAllocation
from shoal.engines.slurm.slurm_programs import error_line, find_program
from shoal.environment import inherited
from shoal.errors import printable

OVER = re.compile(r"has expired|invalid job id|already completing|job has been cancelled", re.IGNORECASE)
NO_PYTHON = re.compile(r"execve\(\).*(no such file|permission denied|not a directory)", re.IGNORECASE)
NO_WAY = re.compile(r"cannot reach the launcher")


class SlurmProvider(AgentPrograms):
    def __init__(self, allocation: Allocation, held: HeldAllocation | None = None) -> None:
        """`held` is closed with it. Raises `UsageError` where there is no srun."""
        srun = find_program("srun")
        variables = srun_variables(inherited({}))
        agent = (sys.executable, *AGENT)
        self._job = allocation.job
        self._held = held
        self.node_count = len(allocation.nodes)
        super().__init__(
            [
                AgentProgram(
                    node=node.name,
                    command=srun_command(srun, allocation.job, node.name, agent),
                    variables=variables,
                    slots=node.slots,
                    is_warned=True,
                )
                for node in allocation.nodes
            ],
            self._why_gone,
        )

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.close()
            self._held = None

    def _why_gone(self, node: str, code: int, lines: Sequence[str]) -> NodeGone:
        return NodeGone(node, why_no_agent(self._job, node, code, lines), why_lost(code, lines))


def why_no_agent(job: str, node: str, code: int, lines: Sequence[str]) -> str:
    """One line for the user: what is wrong with the node, and what to do."""
    if said := _matching(OVER, lines):
        return texts.allocation_over(job, said)
    if _matching(NO_SHOAL, lines):
        return texts.no_shoal_in_step(node, sys.executable)
    if said := _matching(NO_PYTHON, lines):
        return texts.no_python_in_step(node, sys.executable, said)
    if code == AGENT_HAS_NO_WAY and (said := _matching(NO_WAY, lines)):
        return texts.no_way_back(said)
    return texts.no_step(node, error_line(lines))


def _matching(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """The first line in which the pattern is found; empty: none."""
    return next((printable(line.strip()) for line in lines if pattern.search(line)), "")


def why_lost(code: int, lines: Sequence[str]) -> str:
    """Why a node that was there is gone; follows 'node b is gone: '."""
    if code == 0 and not any(line.strip() for line in lines):
        return texts.AGENT_ENDED
    return texts.srun_ended(error_line(lines))
