"""The interface of an engine: what starts the processes of a job, passes on what they print and sees them end.

An engine is driven by one thread. It decides nothing about the job: who is told of an exit, and when all are stopped,
is the launcher's to say. Implementations: `local`.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start."""

    name: str  # for people and as key: "worker 2", "coordinator"; of the running ones, no two have the same
    command: tuple[str, ...]
    variables: dict[str, str]  # on top of the launcher's environment
    log: Path  # everything it prints, byte for byte
    descriptors: tuple[int, ...] = field(default=())  # open files it inherits under the same numbers
    outlives_launcher: float = 0.0  # seconds it may go on after the launcher was killed, to write its record


@dataclass(frozen=True)
class Printed:
    """Complete lines of a process, in order, without line ends."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Exited:
    """A process ended; all it printed was handed out before."""

    name: str
    code: int  # exit status; -9 for a SIGKILL
    last: tuple[str, ...]  # the last lines it printed, at most `output.LAST_LINES`


@dataclass(frozen=True)
class Working:
    """A process has used processor time since it was last looked at, about a second ago."""

    name: str


Happening = Printed | Exited | Working


class Engine(ABC):
    @abstractmethod
    def start(self, spec: ProcessSpec) -> None:
        """Start a process. A command that cannot be run raises `UsageError`."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to hand out."""

    @abstractmethod
    def poll(self) -> tuple[Happening, ...]:
        """What happened since the last call. Never blocks. `Working` may come when nothing was readable."""

    @abstractmethod
    def send_signal(self, name: str, number: signal.Signals) -> None:
        """A signal to the process `name` and what it started. Nothing happens if it has ended."""

    @abstractmethod
    def rename(self, name: str, to: str, *, log: Path) -> bool:
        """What a running process prints from now on is another's; False if it has ended."""

    @abstractmethod
    def stop(self, *, grace: float) -> tuple[Happening, ...]:
        """End everything that runs and return when it is gone: softly, then hard after `grace` seconds (0: at once)."""

    @abstractmethod
    def close(self) -> None:
        """`stop` without grace, then release every resource. Safe to call twice."""


def describe_exit(code: int) -> str:
    """'exited with code 7', 'was killed by SIGKILL': the words every message uses."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
