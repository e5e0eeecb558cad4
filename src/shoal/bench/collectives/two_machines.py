"""Two machines for `shoal bench collectives --namespaces`: network namespaces with a link between them. Needs root.

Each machine has a process namespace too, so that its processes do not find the memory of the others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType
from typing import Self

from shoal.bench import texts
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
        """Limit the rate at which each machine sends, from now on."""
        for name in self._names:
            limit = ("root", "tbf", "rate", RATE, "burst", "128k", "latency", "50ms")
            _run("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *limit)

    def prefix(self, machine: int) -> list[str]:
        """What comes before a command that is to run there."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["ip", "netns", "exec", self._names[machine], *apart]

    def _remove(self) -> None:
        for name in self._names:
            with contextlib.suppress(UsageError):  # this namespace was never made
                _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(texts.program_missing(command[0])) from None
    if done.returncode:
        raise UsageError(texts.machines_not_made(command, done.stderr.strip()))
