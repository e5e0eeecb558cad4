"""What Ray runs in each piece of a job's room: an actor that starts an agent and says how it ended.

A module of its own, since Ray imports it on the nodes.
"""

from __future__ import annotations

import ray

from shoal.engines.nodes.agent_task import run_agent
from shoal.engines.ray.room_messages import shortened
from shoal.environment import inherited


class AgentActor:
    """Runs one agent on the node that Ray has found for it. The end of the actor's process ends the agent."""

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def run(self, errand: bytes, threads: int) -> tuple[int, list[str]]:
        """The agent's exit code and the last lines that it printed."""
        code, lines = run_agent(errand, inherited({"OMP_NUM_THREADS": str(threads)}))
        return code, list(shortened(lines))
