"""Hosts that real `ssh` reaches: one `sshd` each, on a port of this machine or in a namespace. Needs root.

Keys, configuration and the list of known hosts are in a folder of the test's own; nobody's home is touched. `variables`
put a program `ssh` before all others on the PATH, which is the real one with that configuration (`ssh -F`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SSHD = "/usr/sbin/sshd"
PATIENCE = 30.0  # seconds
IS_MISSING = os.geteuid() != 0 or not Path(SSHD).exists() or shutil.which("ssh") is None
REASON = "needs root, and OpenSSH's client and server"
ENTER = 'while [ "$1" != -- ]; do mount -t tmpfs tmpfs "$1"; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Place:
    """Where a host is."""

    namespace: str = ""  # as `ip netns` has it; empty: this machine
    address: str = "127.0.0.1"
    hidden: tuple[Path, ...] = ()  # folders that are empty there


@dataclass
class SshHosts:
    """`kill` ends a host: its sshd and all that was started through it."""

    folder: Path
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    @property
    def left(self) -> list[str]:
        """What agents have left on the hosts' disks."""
        return [str(path) for path in (self.folder / "tmp").glob("*/*")]

    def processes(self, host: str) -> list[psutil.Process]:
        """All processes of a host but its sshd: they are known by the agent's standard input and parents."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.servers[host].pid).children(recursive=True)
        return []

    def agent(self, host: str) -> psutil.Process:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            for process in self.processes(host):
                with contextlib.suppress(psutil.Error):
                    if "shoal.engines.nodes.agent" in process.cmdline():
                        return process
            time.sleep(0.05)
        raise AssertionError(f"no agent on {host}")

    def kill(self, host: str) -> None:
        """As if its power failed: everything at once, except what has escaped into sessions of its own."""
        found = self.processes(host)
        self.servers[host].send_signal(signal.SIGKILL)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.servers[host].wait()
        shutil.rmtree(self.folder / "tmp" / host, ignore_errors=True)

    def revive(self, host: str) -> None:
        """Start a host that was killed."""
        (self.folder / "tmp" / host).mkdir()
        with (self.folder / f"sshd-{host}-again.log").open("wb") as log:
            self.servers[host] = subprocess.Popen(
                self.servers[host].args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


@contextlib.contextmanager
def ssh_hosts(folder: Path, hosts: Mapping[str, Place]) -> Iterator[SshHosts]:
    """The hosts by their names, while the block runs."""
    (folder / "bin").mkdir(parents=True)
    (folder / "tmp").mkdir(mode=0o700)
    folder.chmod(0o700)
    for key in ("host_key", "user_key", "other_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in
    made = SshHosts(folder)
    ports = {name: _free_port() for name in hosts}
    _write_client_files(folder, hosts, ports)
    try:
        for name, place in hosts.items():
            (folder / "tmp" / name).mkdir()
            made.servers[name] = _start_server(folder, name, place, ports[name])
        for name, place in hosts.items():
            _wait_for(made, name, place)
        yield made
    finally:
        for name in made.servers:
            made.kill(name)


def _start_server(folder: Path, name: str, place: Place, port: int) -> subprocess.Popen[bytes]:
    config = folder / f"sshd-{port}.conf"
    settings = {
        "ListenAddress": f"{place.address}:{port}",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "yes",
        "SetEnv": f"TMPDIR={folder / 'tmp' / name}",
    }
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    command = [SSHD, "-D", "-e", "-f", str(config)]
    if place.hidden:
        command = ["unshare", "--mount", "sh", "-c", ENTER, "sh", *map(str, place.hidden), "--", *command]
    if place.namespace:
        command = ["ip", "netns", "exec", place.namespace, *command]
    with (folder / f"sshd-{port}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _write_client_files(folder: Path, hosts: Mapping[str, Place], ports: Mapping[str, int]) -> None:
    text = "".join(f"Host {name}\n  HostName {place.address}\n  Port {ports[name]}\n" for name, place in hosts.items())
    user = f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
    known = f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
    (folder / "config").write_text(text + user + known)
    program = folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    program.chmod(0o755)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(made: SshHosts, name: str, place: Place) -> None:
    limit = time.monotonic() + PATIENCE
    inside = ["ip", "netns", "exec", place.namespace] if place.namespace else []
    command = [*inside, str(made.folder / "bin" / "ssh"), name, "true"]
    while (done := subprocess.run(command, capture_output=True, check=False)).returncode != 0:
        assert made.servers[name].poll() is None, "sshd ended"
        assert time.monotonic() < limit, done.stderr
        time.sleep(0.05)
