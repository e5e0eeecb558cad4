"""The interface of an engine: what starts the processes of a job, passes on what they print and sees them end.

An engine is driven by one thread. It decides nothing about the job: who is told of an exit, and when all are stopped,
is the launcher's to say. Nothing in the interface needs the launcher's machine: a process is described by a value, is
known by its name, gets files and input through its engine, and what it prints comes back through it. Where a process
runs, its program and script are under the paths that its command names. Implementations: `local`; another one is in
`tests/support/namespace_engine.py`.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BroughtFile:
    """A private file of the launcher's machine that a process needs, such as the job's token."""

    path: Path  # on the launcher's machine
    variable: str  # tells the process the path on its own


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start. It leads a session of its own, which tells it from the processes that it starts."""

    name: str  # for people and as key: "worker 2", "coordinator"; of the running ones, no two have the same
    command: tuple[str, ...]
    variables: dict[str, str]  # on top of the launcher's environment
    files: tuple[BroughtFile, ...] = ()  # gone, or no longer readable there, when the process has ended
    takes_input: bool = False  # `send` will be called once; otherwise its standard input is empty
    outlives_launcher: float = 0.0  # seconds it may go on after the launcher was killed, to write its record


@dataclass(frozen=True)
class Printed:
    """What a process wrote to its standard output and standard error, in order and byte for byte."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Exited:
    """A process ended; all it printed was handed out before, and what it started is ended with it."""

    name: str
    code: int  # exit status; -9 for a SIGKILL


@dataclass(frozen=True)
class Working:
    """A process has used processor time since it was last looked at, about a second ago."""

    name: str


Happening = Printed | Exited | Working


class Engine(ABC):
    @abstractmethod
    def start(self, spec: ProcessSpec) -> None:
        """Start a process. What cannot be run raises `UsageError`, or ends with a code above 0."""

    @abstractmethod
    def send(self, name: str, data: bytes) -> None:
        """Write `data` to the standard input of a process that takes some, and close that. May fail silently: then the
        process has ended, or is about to.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to hand out."""

    @abstractmethod
    def poll(self) -> tuple[Happening, ...]:
        """What happened since the last call. Never blocks. `Working` may come when nothing was readable."""

    @abstractmethod
    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        """A signal to these processes and what they started. Those that have ended are left out."""

    @abstractmethod
    def close(self) -> None:
        """Kill everything that runs, return when it is gone, and release every resource. Safe to call twice.

        A launcher that is killed cannot call this: then the engine sees to the same end, with the time that
        `outlives_launcher` gives a process.
        """


def describe_exit(code: int) -> str:
    """'exited with code 7', 'was killed by SIGKILL': the words every message uses."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
