"""Agents on hosts that the user's own `ssh` reaches: one ssh for each, which starts the agent and stays with it.

ssh reads the user's configuration and asks nothing (`BatchMode`). It notices a dead link within seconds. The agent is
told where the launcher is through ssh's standard input, and ends when that ends. A host that was lost is tried again,
since it may come back. Not here: why ssh failed (`ssh_failures`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field

from shoal.engines import texts
from shoal.engines.nodes.provider import AGENT, NodeGone, Provider, WayIn
from shoal.engines.ssh.hosts_file import Host
from shoal.engines.ssh.ssh_failures import why_lost, why_no_agent
from shoal.errors import UsageError

# ServerAlive: a dead link is noticed after 6 s. Forwardings of the user's configuration are not for an agent.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "2",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
}
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds before a host that was lost is tried again
MOST_LINES, MOST_LINE = 20, 4096  # of what ssh and the agent print
ASK_SECONDS = 10.0  # for ssh to say what its configuration has
END_SECONDS = 5.0  # that ssh may take to end


@dataclass
class _Session:
    """One ssh."""

    host: Host
    process: subprocess.Popen[bytes]
    pidfd: int
    began: float  # by time.monotonic
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    is_open: bool = True  # its output has not ended


class SshProvider(Provider):
    def __init__(self, hosts: tuple[Host, ...]) -> None:
        """Raises `UsageError` where there is no ssh."""
        self._ssh = find_ssh()
        self._hosts = hosts
        self._way_in: WayIn | None = None
        self._selector = selectors.EpollSelector()
        self._sessions: dict[str, _Session] = {}  # by node
        self._pauses: dict[str, float] = {}  # by node: seconds before the next try
        self._again: dict[str, float] = {}  # by node that is lost: when to try again, by time.monotonic
        self._is_closed = False

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        self._way_in = way_in
        for host in self._hosts:
            self._start(host)
        return tuple(host.name for host in self._hosts)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[NodeGone, ...]:
        gone = []
        for key, _ in self._selector.select(0):
            session: _Session = key.data
            if key.fd == session.pidfd:
                gone.append(self._ended(session))
            elif session.is_open:
                self._read(session)
        now = time.monotonic()
        for host in [host for host in self._hosts if self._again.get(host.name, now) < now]:
            del self._again[host.name]
            self._start(host)
        return tuple(gone)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for session in self._sessions.values():
            _close_input(session.process)
        limit = time.monotonic() + END_SECONDS
        for session in tuple(self._sessions.values()):
            try:
                session.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.process.kill()
                session.process.wait()
            self._forget(session)
        self._selector.close()

    def _start(self, host: Host) -> None:
        """Start ssh in a session of its own: a Ctrl-C in the terminal is for the launcher alone."""
        assert self._way_in is not None
        process = subprocess.Popen(
            ssh_command(self._ssh, host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        session = _Session(host, process, os.pidfd_open(process.pid), time.monotonic())
        self._sessions[host.name] = session
        self._selector.register(session.pidfd, selectors.EVENT_READ, session)
        self._selector.register(process.stdout, selectors.EVENT_READ, session)
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says why
            process.stdin.write(self._way_in.errand_line(host.name, host.slots))

    def _read(self, session: _Session) -> None:
        assert session.process.stdout is not None
        try:
            data = os.read(session.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            session.is_open = False
            self._selector.unregister(session.process.stdout)
        session.lines.extend(line[:MOST_LINE] for line in data.decode("utf-8", "replace").splitlines())

    def _ended(self, session: _Session) -> NodeGone:
        while session.is_open and _has_output(session.process):
            self._read(session)
        code = session.process.wait()
        self._forget(session)
        host, lines = session.host, tuple(session.lines)
        lasted = time.monotonic() - session.began
        pause = self._pauses[host.name] = min(LONGEST_PAUSE, 2 * self._pauses.get(host.name, FIRST_PAUSE / 2))
        if lasted > LONGEST_PAUSE:
            pause = self._pauses[host.name] = FIRST_PAUSE
        self._again[host.name] = time.monotonic() + pause
        return NodeGone(host.name, why_no_agent(host, code, lines), why_lost(code, lines))

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.host.name]
        self._selector.unregister(session.pidfd)
        os.close(session.pidfd)
        assert session.process.stdout is not None
        if session.is_open:
            self._selector.unregister(session.process.stdout)
        session.process.stdout.close()
        _close_input(session.process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _has_output(process: subprocess.Popen[bytes]) -> bool:
    poll = selectors.PollSelector()
    assert process.stdout is not None
    poll.register(process.stdout, selectors.EVENT_READ)
    return bool(poll.select(0))


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
