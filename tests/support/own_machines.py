"""Machines with an address, a host name and file systems of their own, for jobs that are started by hand. Needs root.

A machine of a `Network` on which a folder of the test's appears as `HOME`, and where the folder of all others is empty,
as is /dev/shm: nothing but the network leads from one to another. Programs are shared. Not here: the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support.network import Network

HOME = Path("/mnt")  # where a machine's own folder appears
# Arguments: the machine's host name, its own folder, the folder of all machines, then the command.
ENTER = """
set -e
hostname "$1"
mount --bind "$2" /mnt
mount -t tmpfs tmpfs "$3"
mount -t tmpfs tmpfs /dev/shm
shift 3; cd /mnt
exec "$@"
"""


@dataclass
class OwnMachines:
    network: Network
    folder: Path  # has a folder for each machine
    variables: dict[str, str] = field(default_factory=dict)  # of all processes

    def home(self, machine: int) -> Path:
        """A machine's folder, as the test sees it."""
        path = self.folder / f"machine{machine}"
        path.mkdir(exist_ok=True, mode=0o700)
        return path

    def start(self, machine: int, *words: str, **variables: str) -> subprocess.Popen[str]:
        """`shoal` with these words, in the machine's folder. Each program here becomes the next one."""
        own = {"HOME": str(HOME), "TMPDIR": str(HOME), "XDG_RUNTIME_DIR": str(HOME), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.network.namespaces[machine], "unshare", "--mount", "--uts"),
                *("sh", "-c", ENTER, "sh", f"machine{machine}", str(self.home(machine)), str(self.folder)),
                *(sys.executable, "-m", "shoal", *words),
            ],
            env={**os.environ, **self.variables, **own, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.network.processes.append(process)
        return process
