"""Machines that are network namespaces, on a switch that is one too: real links to cut and to slow down. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = Path(__file__).parent
NOBODY = "02:00:00:00:00:99"  # a hardware address that no machine has
CLONE_NEWNET = 0x40000000  # from linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = count()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Network:
    """`size` machines, each with one link to the same switch."""

    def __init__(self, size: int) -> None:
        self._name = f"sh{os.getpid()}x{next(_numbers)}"
        self._made: list[str] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.size = size
        try:
            self._add("s")
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            for machine in range(size):
                self._plug_in(machine)
        except BaseException:
            self.close()
            raise

    def _add(self, suffix: str) -> None:
        _ip("netns", "add", self._name + suffix)
        self._made.append(self._name + suffix)

    def _plug_in(self, machine: int) -> None:
        self._add(str(machine))
        name, port = self._name + str(machine), f"port{machine}"
        _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "addr", "add", f"{self.host(machine)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", name, "link", "set", link, "up")

    @property
    def _switch(self) -> str:
        return self._name + "s"

    @property
    def namespaces(self) -> list[str]:
        """Of the machines, as `ip netns` has them."""
        return [self._name + str(machine) for machine in range(self.size)]

    def host(self, machine: int) -> str:
        return f"10.77.0.{machine + 1}"

    def start(self, machine: int, *command: str | Path, **options: object) -> subprocess.Popen[str]:
        """A process on a machine; its pipes are text."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._name + str(machine), sys.executable, *map(str, command)],
            text=True,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options},  # type: ignore[call-overload]  of several types
        )
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def inside(self, machine: int) -> Iterator[None]:
        """Sockets that this thread makes meanwhile belong to that machine, and stay there."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as here,
            Path(f"/run/netns/{self._name}{machine}").open("rb") as there,
        ):
            assert _libc.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert _libc.setns(here.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    def sent(self, machine: int) -> int:
        """Bytes that have left a machine."""
        command = ["ip", "-n", self._name + str(machine), "-j", "-s", "link", "show", "eth0"]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return int(found[0]["stats64"]["tx"]["bytes"])

    # Faults. Nobody is told: packets vanish.

    def unplug(self, machine: int) -> None:
        """Cut a machine off from all others."""
        _ip("-n", self._switch, "link", "set", f"port{machine}", "nomaster")

    def plug_in_again(self, machine: int) -> None:
        _ip("-n", self._switch, "link", "set", f"port{machine}", "master", "bridge")

    def split(self, *machines: int) -> None:
        """These machines can reach each other and nobody else any more."""
        _ip("-n", self._switch, "link", "add", "aside", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "aside", "up")
        for machine in machines:
            _ip("-n", self._switch, "link", "set", f"port{machine}", "master", "aside")

    def part(self, *machines: int) -> None:
        """These machines cannot reach each other any more; all others can reach them, and they all others."""
        for machine in machines:
            self._isolate(machine, "on")

    def rejoin(self, *machines: int) -> None:
        for machine in machines:
            self._isolate(machine, "off")

    def cut(self, machine: int, other: int) -> None:
        """What a machine sends to another one vanishes. The other way round it does not: a cut has two directions."""
        self._neighbour("replace", machine, other, "lladdr", NOBODY, "nud", "permanent")

    def mend(self, machine: int, other: int) -> None:
        self._neighbour("del", machine, other)

    def _neighbour(self, verb: str, machine: int, other: int, *words: str) -> None:
        _ip("-n", self._name + str(machine), "neigh", verb, self.host(other), *words, "dev", "eth0")

    def _isolate(self, machine: int, state: str) -> None:
        _ip("-n", self._switch, "link", "set", f"port{machine}", "type", "bridge_slave", "isolated", state)

    def slow_down(self, machine: int, rate: str, burst: str = "32k") -> None:
        """What a machine sends leaves at this rate, such as 10mbit.

        The kernel cuts packets that are longer than `burst`. On veth they have up to 64 KB: beyond 100 Mbit/s, cutting
        them costs more than sending them.
        """
        shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", "400ms"]
        command = ["tc", "-n", self._name + str(machine), "qdisc", "add", "dev", "eth0", *shape]
        subprocess.run(command, check=True, capture_output=True)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for name in self._made:
            for _ in range(50):  # a moment after its last process has ended it may still be in use
                if subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0:
                    break
                time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
