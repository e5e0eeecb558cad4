"""For clusters that run Python on a node, as a task or an actor: the agent's process, from its start to its end.

The agent's standard input is a pipe of this process: whatever ends this process ends the agent. It is in a session of
its own, since signals to the cluster's own processes are not for it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping

from shoal.engines.nodes.agent_programs import MOST_LINES, MOST_SAID
from shoal.engines.nodes.provider import AGENT


def run_agent(errand: bytes, variables: Mapping[str, str]) -> tuple[int, list[str]]:
    """The agent's exit code and the last lines that it printed. `variables` are its whole environment."""
    agent = subprocess.Popen(
        (sys.executable, *AGENT),
        env=dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    said = b""
    with agent, contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says why
        agent.stdin.write(errand)
        while data := agent.stdout.read(MOST_SAID):
            said = (said + data)[-MOST_SAID:]
    return agent.wait(), said.decode("utf-8", "replace").splitlines()[-MOST_LINES:]
