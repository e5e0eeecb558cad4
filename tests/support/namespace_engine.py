"""An engine whose processes have an address and a file system of their own, as on other machines. Needs root.

Each process runs in a network namespace, by turns, and in a mount namespace of its own, where the launcher's folders
that are named `hidden` are empty, /dev/shm too, and the files that were brought for it are in `BROUGHT`. An example for
whoever writes an engine: it stands on the local one, as one that calls `ssh` or `srun` would, and a package that offers
`namespaces_settings.NAMESPACES` by an entry point has it as `--on namespaces`. Not here: making the network
(`network`).
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.engines.engine import Engine, Exited, Happening, ProcessSpec
from shoal.engines.local import LocalEngine
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, with_reachable_address
from support.namespaces_settings import NamespacesSettings

BROUGHT = Path("/mnt")  # where a process finds its files, which are on no other process's file system
# Arguments: the folder with the files, where they appear, how many folders are hidden, those, then the command.
ENTER = """
set -e
mount --bind "$1" "$2"; hidden=$3; shift 3
while [ "$hidden" -gt 0 ]; do mount -t tmpfs tmpfs "$1"; hidden=$((hidden - 1)); shift; done
exec "$@"
"""


@dataclass(frozen=True)
class NamespaceEngineConfig:
    namespaces: Sequence[str]  # names, as `ip netns` has them
    hidden: tuple[Path, ...] = ()  # folders of the launcher's machine that are not on the processes' machines


class NamespaceEngine(Engine):
    def __init__(self, config: NamespaceEngineConfig) -> None:
        self._config = config
        self._local = LocalEngine()
        self._next = itertools.cycle(config.namespaces)
        self._folders: dict[str, Path] = {}  # with the files that were brought, by process

    def start(self, spec: ProcessSpec) -> None:
        folder = self._folders[spec.name] = Path(tempfile.mkdtemp(prefix="shoal-brought-"))  # mode 0700
        for file in spec.files:
            (folder / file.variable).touch(mode=0o600)
            (folder / file.variable).write_bytes(file.path.read_bytes())
        hidden = [str(path) for path in (*self._config.hidden, Path("/dev/shm")) if path.is_dir()]
        # Each of these becomes the next one, so that the process keeps its number and leads its session.
        command = (
            *("ip", "netns", "exec", next(self._next), "unshare", "--mount", "sh", "-c", ENTER, "sh"),
            *(str(folder), str(BROUGHT), str(len(hidden)), *hidden, *spec.command),
        )
        found = {file.variable: str(BROUGHT / file.variable) for file in spec.files}
        self._local.start(replace(spec, command=command, variables={**spec.variables, **found}, files=()))

    def send(self, name: str, data: bytes) -> None:
        self._local.send(name, data)

    def fileno(self) -> int:
        return self._local.fileno()

    def poll(self) -> tuple[Happening, ...]:
        happened = self._local.poll()
        for one in happened:
            if isinstance(one, Exited):
                shutil.rmtree(self._folders.pop(one.name), ignore_errors=True)
        return happened

    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        self._local.send_signal(names, number)

    def close(self) -> None:
        self._local.close()
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    """What `EngineKind.maker` names. Its processes see the launcher's files, so that the script's folder stays here."""
    settings = config.of(NamespacesSettings)
    names = settings.namespaces.split()
    hidden = tuple(Path(path).absolute() for path in settings.hide_folders.split(":") if path)
    hosts = [_address(name) for name in names]
    return Elsewhere(
        with_reachable_address(config, lambda: hosts),
        lambda _bound: NamespaceEngine(NamespaceEngineConfig(names, hidden)),
    )


def _address(namespace: str) -> str:
    asked = ["ip", "-n", namespace, "-j", "-4", "address", "show", "scope", "global"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise UsageError(f"the namespace {namespace} cannot be used: {answer.stderr.strip()}")
    found = [str(each["local"]) for link in json.loads(answer.stdout) for each in link.get("addr_info", ())]
    if not found:
        raise UsageError(f"the namespace {namespace} has no address")
    return found[0]
