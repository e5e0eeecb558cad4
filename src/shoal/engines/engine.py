"""The interface of an engine, which starts the processes of a job, passes their output on and sees them end.

One thread drives an engine. An engine decides nothing about the job: the launcher decides who is told of an exit and
when processes are stopped. Nothing in the interface needs the launcher's machine: a value describes a process, a name
identifies it, and files, input and output pass through the engine. An engine may replace the interpreter and the script
in a command by those of the machine where the process runs. Implementations: `local` and `nodes`; another one is in
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
    variable: str  # environment variable that tells the process the path on its own machine


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start. It leads a session of its own, which distinguishes it from its child processes."""

    name: str  # for people and as key: "worker 2", "coordinator"; unique among running processes
    command: tuple[str, ...]
    variables: dict[str, str]  # added to the launcher's environment
    files: tuple[BroughtFile, ...] = ()  # removed, or no longer readable there, when the process has ended
    takes_input: bool = False  # `send` will be called once; otherwise standard input is empty
    outlives_launcher: float = 0.0  # seconds that it may go on after the launcher was killed, to write its record
    script: str = ""  # the word in the command that is the user's script, which may have another path elsewhere
    takes_slot: bool = True  # it needs a worker's share of a machine
    apart: bool = False  # better not on one machine with others of the same job that have this set


@dataclass(frozen=True)
class Printed:
    """Bytes that a process wrote to standard output and standard error, in order."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Exited:
    """A process ended, and its child processes with it; all its output was returned before."""

    name: str
    code: int  # exit status; -9 for a SIGKILL
    reason: str = ""  # what is known besides, such as "its node b is gone: ..."


@dataclass(frozen=True)
class Working:
    """A process has used processor time since it was last looked at, about a second ago."""

    name: str


@dataclass(frozen=True)
class Placed:
    """The engine has chosen the machine for a process. Engines with one machine do not say so."""

    name: str
    node: str
    host: str  # the machine's own name
    reason: str


@dataclass(frozen=True)
class MachineNotice:
    """Something that the user should know about the machines: one is gone, a process waits for one."""

    text: str
    is_problem: bool = True  # False: a machine came


@dataclass(frozen=True)
class NoMachines:
    """The engine can start nothing any more; the text says why and what to do."""

    text: str


@dataclass(frozen=True)
class MachinesLeave:
    """All machines are taken away soon: the job should end in good order while it can. The text says who says so."""

    text: str


Happening = Printed | Exited | Working | Placed | MachineNotice | NoMachines | MachinesLeave


class Engine(ABC):
    @abstractmethod
    def start(self, spec: ProcessSpec) -> None:
        """Start a process. A command that cannot be run raises `UsageError`, or ends with a code above 0."""

    @abstractmethod
    def send(self, name: str, data: bytes) -> None:
        """Write `data` to the standard input of a process with `takes_input`, and close it. May fail silently if the
        process has ended, or is about to end.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to return."""

    @abstractmethod
    def poll(self) -> tuple[Happening, ...]:
        """What happened since the last call. Never blocks. `Working` may come when nothing was readable."""

    @abstractmethod
    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        """Signal these processes and their child processes. Ignores processes that have ended."""

    @abstractmethod
    def close(self) -> None:
        """Kill all processes, return when they are gone, and release every resource. Safe to call twice.

        A launcher that is killed cannot call this; the engine then has to end all processes by itself, each after its
        `outlives_launcher` seconds.
        """


# What people are told


def no_guardian(why: str | None) -> str:
    return f"the job's guardian process could not be started: {why}"


def not_started(spec: ProcessSpec, why: object) -> str:
    return f"{spec.name} could not be started: {why}; the command was {spec.command[0]}"


def describe_exit(code: int, reason: str = "") -> str:
    """'exited with code 7', 'was killed by SIGKILL', 'was lost: its node b is gone': the wording of every message."""
    if code < 0 and reason:
        return f"was lost: {reason}"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
