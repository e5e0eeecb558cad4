"""A job over real links: machine 0 of a network has the coordinator, the others have workers that train."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shoal.checkpoint.published.manifest import MANIFEST, Manifest, decode_manifest
from shoal.events import AnyEvent, Event
from support.launcher import events_in, write_token
from support.network import PROGRAMS, Network

PATIENCE = 90.0  # seconds; only a hanging test ever waits so long
Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True)
class Applied:
    """A step in a worker's own log."""

    at: float  # of the machine's monotonic clock
    generation: int
    step: int


class NetworkJob:
    def __init__(self, network: Network, folder: Path, machines: Sequence[int], **settings: object) -> None:
        """`machines`: of each worker, by number. Of the settings, `epochs` is the script's and `script` names it."""
        self._network = network
        self._folder = folder
        self._run_dir = folder / "run"
        self._epochs = str(settings.pop("epochs", 4))
        script = PROGRAMS / str(settings.pop("script", "network_training.py"))
        token = folder / "token"
        write_token(token, "a token for tests")
        given = {"workers": len(machines), "heartbeat-limit": 1.5, "lease": 3, "run-dir": self._run_dir} | settings
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        address = f"{network.host(0)}:7000"
        self._command = ("--address", address, "--token-file", token, *options, "train.py")
        self.coordinator = self._start_coordinator()
        self.workers = [
            network.start(
                machine,
                script,
                env=self._variables(address, token, worker),
                cwd=folder,
                start_new_session=True,  # as engines do it
            )
            for worker, machine in enumerate(machines)
        ]

    def _start_coordinator(self) -> subprocess.Popen[str]:
        return self._network.start(0, "-m", "shoal", "coordinator", *self._command)

    def kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.wait(PATIENCE)

    def restart_coordinator(self) -> None:
        self.coordinator = self._start_coordinator()

    def _variables(self, address: str, token: Path, worker: int) -> dict[str, str]:
        ours = {
            "SHOAL_COORDINATOR": address,
            "SHOAL_TOKEN_FILE": str(token),
            "SHOAL_WORKER": str(worker),
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(PROGRAMS.parent)))),
        }
        return {**os.environ, **ours, "OMP_NUM_THREADS": "1", "EPOCHS": self._epochs}

    def line(self, worker: int) -> str:
        pipe = self.workers[worker].stdout
        assert pipe is not None
        return pipe.readline().rstrip("\n")

    def reach(self, worker: int, step: int) -> None:
        """Wait until a worker has applied so many steps."""
        while not (line := self.line(worker)).startswith("step") or int(line.split()[1]) < step:
            assert line, f"worker {worker} ended"

    def result(self, worker: int) -> str:
        """The last words of a worker that finishes."""
        while (line := self.line(worker)).startswith("step"):
            pass
        return line

    def log(self, worker: int) -> list[Applied]:
        """The steps that a worker says it applied, whoever knows of them."""
        file = self._folder / f"steps-{worker}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        words = (line.split() for line in lines if line.endswith("\n"))
        return [Applied(float(at), int(generation), int(step)) for at, generation, step in words]

    def apply(self, worker: int, *, generation: int, steps: int) -> None:
        """Wait until a worker says that it has applied so many steps in this generation."""
        limit = time.monotonic() + PATIENCE
        while sum(applied.generation == generation for applied in self.log(worker)) < steps:
            assert time.monotonic() < limit, f"worker {worker} does not go on in generation {generation}"
            time.sleep(0.05)

    def had(self, worker: int, step: int, generation: int) -> bool:
        """Whether a worker says that it had this state in this generation; it may have brought it from one before."""
        return any(applied.step == step and applied.generation <= generation for applied in self.log(worker))

    def manifests(self) -> list[Manifest]:
        """Of the checkpoints that are published and kept."""
        found = []
        for file in sorted((self._run_dir / "checkpoints").glob(f"*/{MANIFEST}")):
            with contextlib.suppress(FileNotFoundError):  # a newer one has taken its place by now
                found.append(decode_manifest(file.read_bytes(), checkpoint=file.parent.name))
        return found

    def record(self) -> list[AnyEvent]:
        return events_in(self._run_dir)

    def events(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind so far."""
        return [event for event in self.record() if isinstance(event, kind)]

    def wait_for(self, kind: type[Kind], count: int = 1) -> list[Kind]:
        limit = time.monotonic() + PATIENCE
        while len(found := self.events(kind)) < count:
            assert time.monotonic() < limit, f"no {kind.__name__} came"
            time.sleep(0.05)
        return found

    def exit_code(self, process: subprocess.Popen[str]) -> int:
        return process.wait(PATIENCE)
