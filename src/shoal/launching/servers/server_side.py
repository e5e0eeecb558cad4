"""A job's parameter servers as the launcher sees them: an interface, and `NoServers` for jobs without.

Implementations: `own_servers` (processes of this machine) and `borrowed_servers` (a group that somebody else runs).
Driven by the launcher's thread; nothing here blocks. Not here: the servers themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from shoal.engines.waiting import Source
from shoal.events import AnyEvent, ServersMeasured
from shoal.launching.processes.running import ProcessNews

MEASURED_EVERY = 1.0  # seconds between two looks at the servers' figures
RECORDED_EVERY = 5.0  # seconds between two figures in the job's record


@dataclass
class Seen:
    """What came since the last look."""

    events: list[AnyEvent] = field(default_factory=list)  # for the record and the screen
    shown: list[ServersMeasured] = field(default_factory=list)  # for the screen alone
    lines: list[str] = field(default_factory=list)  # for the screen: the servers' output, and lines about them
    failure: str = ""  # why the job cannot go on


class ServerSide(ABC):
    @property
    def serving(self) -> tuple[int, ...]:
        """Servers whose processes run here and that are in the group, by number."""
        return ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Readable when `look` has something to return."""
        return ()

    @property
    @abstractmethod
    def next_due(self) -> float | None:
        """When `look` should be called at the latest."""

    def owns(self, name: str) -> bool:  # noqa: ARG002  a name that it may be asked about
        """Whether a process of the engine is one of these servers."""
        return False

    def take(self, happened: ProcessNews, now: float) -> None:  # noqa: B027  most have no processes
        """Something happened to a process that this side `owns`."""

    @abstractmethod
    def look(self, now: float) -> Seen:
        """Start missing servers, and return what happened."""

    def cease(self) -> None:  # noqa: B027  most have no processes
        """The job is ending: replace no more servers."""

    @abstractmethod
    def close(self) -> None:
        """Release everything but the processes, which the engine ends. Safe to call twice."""


class NoServers(ServerSide):
    @property
    def next_due(self) -> float | None:
        return None

    def look(self, now: float) -> Seen:  # noqa: ARG002  the interface's
        return Seen()

    def close(self) -> None:
        pass


class Rhythm:
    """When figures are looked at, and which of them go into the record. Pure."""

    def __init__(self) -> None:
        self._next = 0.0
        self._next_record = 0.0

    @property
    def next_due(self) -> float:
        return self._next

    def is_due(self, now: float) -> bool:
        if now < self._next:
            return False
        self._next = now + MEASURED_EVERY
        return True

    def sort(self, measured: ServersMeasured | None, into: Seen, now: float) -> None:
        if measured is None:
            return
        if now >= self._next_record:
            self._next_record = now + RECORDED_EVERY
            into.events.append(measured)
        else:
            into.shown.append(measured)
