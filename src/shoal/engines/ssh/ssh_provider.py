"""Agents on hosts that the user's own `ssh` reaches: one ssh for each, which starts the agent and stays with it.

ssh reads the user's configuration and asks nothing (`BatchMode`). It notices a dead link within seconds. Not here: the
programs that run (`agent_programs`), and why ssh failed (`ssh_failures`).
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.engines import texts
from shoal.engines.nodes.agent_programs import AgentProgram, AgentPrograms, last_line
from shoal.engines.nodes.provider import AGENT, NodeGone
from shoal.engines.ssh.hosts_file import Host
from shoal.engines.ssh.ssh_failures import UNKNOWN, is_busy, why_lost, why_no_agent
from shoal.environment import inherited
from shoal.errors import UsageError
from shoal.files import read_plain

# ServerAlive: a dead link is noticed after 6 s. Forwardings of the user's configuration are not for an agent.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "2",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
}
MOST_BUSY = 3  # times that sshd may hang up at once: with many nodes on the way through one host it may be busy
ASK_SECONDS = 10.0  # for ssh to say what its configuration has
MOST_CONFIG_BYTES = 256 * 1024  # of the user's ssh configuration, in which a misspelt name is looked for
MOST_CONFIGURED = 1000  # hosts in it


class SshProvider(AgentPrograms):
    def __init__(self, hosts: tuple[Host, ...]) -> None:
        """Raises `UsageError` where there is no ssh."""
        ssh, variables = find_ssh(), inherited({})
        self._hosts = {host.name: host for host in hosts}
        self._busy: Counter[str] = Counter()  # by node: how often its sshd hung up at once, since it was there last
        super().__init__(
            [AgentProgram(host.name, ssh_command(ssh, host), variables, slots=host.slots) for host in hosts],
            self._why_gone,
        )

    def came(self, node: str) -> None:
        super().came(node)
        self._busy.pop(node, None)

    def _why_gone(self, node: str, code: int, lines: Sequence[str]) -> NodeGone | None:
        host = self._hosts[node]
        if is_busy(code, lines):
            self._busy[node] += 1
            if self._busy[node] < MOST_BUSY:
                return None
        known: list[str] = []
        if UNKNOWN.search(last_line(lines)):
            known = [*(self._hosts[name].address for name in self.running), *configured_hosts()]
        return NodeGone(node, why_no_agent(host, code, lines, known), why_lost(code, lines))


def configured_hosts() -> list[str]:
    """Names of hosts in the user's ssh configuration, without patterns; none if it cannot be read, or is very large."""
    try:
        text = read_plain(Path.home() / ".ssh" / "config", MOST_CONFIG_BYTES).decode("utf-8", "replace")
    except (OSError, RuntimeError):  # no such file; no home folder
        return []
    words = (line.replace("=", " ").split() for line in text.splitlines())
    names = [name for key, *named in filter(None, words) if key.lower() == "host" for name in named]
    return [name for name in names if not set(name) & set("*?!")][:MOST_CONFIGURED]


def find_ssh() -> str:
    if (found := shutil.which("ssh")) is None:
        raise UsageError(texts.NO_SSH)
    return found


def ssh_command(ssh: str, host: Host) -> tuple[str, ...]:
    """The shell on the host replaces itself by the agent."""
    options = (word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}"))
    return (ssh, "-T", *options, "--", host.address, f"exec {_quoted(host.python)} {shlex.join(AGENT)}")


def _quoted(path: str) -> str:
    """For a shell, which still finds the home folder."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def real_name(host: Host) -> str:
    """The name or address that ssh connects to: the user's configuration may have another one for a host."""
    command = (find_ssh(), "-G", "--", host.address)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
        for line in done.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key.lower() == "hostname" and value:
                return value
    return host.address.rpartition("@")[2]
