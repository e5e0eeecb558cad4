"""What Ray runs in each piece of a job's room: an actor that starts an agent and says how it ended.

A module of its own, since Ray imports it on the nodes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import ray

from shoal.engines.nodes.agent_programs import MOST_SAID
from shoal.engines.nodes.provider import AGENT
from shoal.engines.ray.room_messages import shortened
from shoal.environment import inherited


class AgentActor:
    """Runs one agent on the node that Ray has found for it. The end of the actor's process ends the agent."""

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def run(self, errand: bytes, threads: int) -> tuple[int, list[str]]:
        """The agent's exit code and the last lines that it printed."""
        agent = subprocess.Popen(
            (sys.executable, *AGENT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=inherited({"OMP_NUM_THREADS": str(threads)}),
            start_new_session=True,
        )
        assert agent.stdin is not None
        assert agent.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says why
            agent.stdin.write(errand)
        said = b""
        while data := agent.stdout.read(65536):
            said = (said + data)[-MOST_SAID:]
        return agent.wait(), list(shortened(said.decode("utf-8", "replace").splitlines()))
