"""Two machines for `shoal bench collectives --namespaces`: network namespaces with a link between them. Needs root.

Processes of different machines also live in different process namespaces, or they would find each other's memory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType
from typing import Self

from shoal.errors import UsageError

HOSTS = ("10.77.1.1", "10.77.1.2")
INTERFACE = "eth0"
RATE = "1gbit"


class TwoMachines:
    def __init__(self) -> None:
        self._names = [f"shoal-{os.getpid()}-{machine}" for machine in range(2)]

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                _run("ip", "netns", "add", name)
            first, second = self._names
            ends = ("peer", "name", INTERFACE, "netns", second)
            _run("ip", "link", "add", INTERFACE, "netns", first, "type", "veth", *ends)
            for name, host in zip(self._names, HOSTS, strict=True):
                _run("ip", "-n", name, "addr", "add", f"{host}/24", "dev", INTERFACE)
                for link in ("lo", INTERFACE):
                    _run("ip", "-n", name, "link", "set", link, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def shape(self) -> None:
        """From now on what each machine sends leaves at a limited rate."""
        for name in self._names:
            limit = ("root", "tbf", "rate", RATE, "burst", "128k", "latency", "50ms")
            _run("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *limit)

    def prefix(self, machine: int) -> list[str]:
        """What comes before a command that is to run there."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["ip", "netns", "exec", self._names[machine], *apart]

    def _remove(self) -> None:
        for name in self._names:
            with contextlib.suppress(UsageError):  # it was never made
                _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"--namespaces needs the program {command[0]!r}, which is not installed") from None
    if done.returncode:
        raise UsageError(f"--namespaces cannot make its machines: {' '.join(command)}: {done.stderr.strip()}")
