"""Inputs and outputs of the launcher's supervisor: frozen facts and instructions. Decides nothing."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from shoal.events import Event
from shoal.wire.messages import Ended, Enlisted

# Facts


@dataclass(frozen=True)
class WorkerExited:
    worker: int
    code: int
    reason: str = ""  # what its engine knows besides, such as "its node b is gone: ..."


@dataclass(frozen=True)
class CoordinatorExited:
    """The coordinator's process ended or does not answer; all its messages were handed over before."""

    how: str  # "was killed by SIGKILL"
    may_return: bool = True  # False: it exited by itself before its first answer


@dataclass(frozen=True)
class CoordinatorBack:
    """The coordinator answers: for the first time, or again, and then it may have missed the last messages to it."""


@dataclass(frozen=True)
class ServersFailed:
    """The parameter servers cannot be kept running."""

    text: str


@dataclass(frozen=True)
class MachinesGone:
    """No process can be started on any machine."""

    text: str


@dataclass(frozen=True)
class MachinesLeaving:
    """All machines are taken away soon, as if the launcher had got SIGTERM. Every machine may say so."""

    text: str


@dataclass(frozen=True)
class Signalled:
    number: signal.Signals


@dataclass(frozen=True)
class TimePassed:
    """Time has passed."""


Fact = (
    WorkerExited
    | CoordinatorExited
    | CoordinatorBack
    | ServersFailed
    | MachinesGone
    | MachinesLeaving
    | Signalled
    | TimePassed
    | Enlisted
    | Ended
    | Event
)


# Instructions


@dataclass(frozen=True)
class TellExit:
    """Report a worker's exit to the coordinator."""

    worker: int
    code: int
    reason: str = ""


@dataclass(frozen=True)
class AskForNumber:
    """Ask the coordinator for the number of one more worker."""


@dataclass(frozen=True)
class StartWorker:
    """Start a process, or turn a spare into this worker."""

    worker: int
    place: int  # 0..workers-1: the worker's place on this machine
    reason: str


@dataclass(frozen=True)
class RestartCoordinator:
    """Start the coordinator's process again; it goes on with the job."""


@dataclass(frozen=True)
class KillCoordinator:
    """The coordinator runs but does not answer. A new one will know all its decisions."""


@dataclass(frozen=True)
class AskToStop:
    """Ask the coordinator for an agreed stop."""

    reason: str
    exit_code: int  # of a job that this stop ends


@dataclass(frozen=True)
class InterruptWorkers:
    """Send SIGINT to every running worker."""


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class FinishJob:
    """The job is over: stop all processes, then tell the user."""

    exit_code: int
    grace: float  # seconds between SIGTERM and SIGKILL, 0 for SIGKILL at once
    error: str = ""  # class name from `errors`; empty when all is well or the user stopped the job
    text: str = ""
    lost_worker: int | None = None  # whose last lines belong to the message


Instruction = (
    TellExit
    | AskForNumber
    | StartWorker
    | RestartCoordinator
    | KillCoordinator
    | AskToStop
    | InterruptWorkers
    | Say
    | FinishJob
)
