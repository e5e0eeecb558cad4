"""The running processes of a launcher: turns their output into lines and logs, whichever engine started them.

There are two engines: this machine's, for the coordinator, which needs the launcher's listening socket and lock, and
the one for the job's other processes, which may be the same. Not here: which processes there are (`specs`) and what to
do when they end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.engines.engine import (
    Engine,
    Exited,
    Happening,
    MachineNotice,
    MachinesLeave,
    NoMachines,
    Placed,
    Printed,
    ProcessSpec,
    Working,
)
from shoal.engines.local import LocalEngine
from shoal.engines.waiting import Source, wait_for
from shoal.launching.processes.output import Output

LOOK_SECONDS = 1.0  # the longest wait for processes that are to end


@dataclass(frozen=True)
class JobProcess:
    """A process to start, and the file on this machine for its output."""

    spec: ProcessSpec
    log: Path | None  # None: the output is not kept
    descriptors: tuple[int, ...] = ()  # open files that it inherits, which makes it run on this machine

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class LinesPrinted:
    """Complete lines of a process, in order, without line ends."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Gone:
    """A process ended; all its lines were handed out before."""

    name: str
    code: int  # exit status; -9 for a SIGKILL
    last: tuple[str, ...]  # the last lines it printed, at most `output.LAST_LINES`
    reason: str = ""  # what the engine knows besides


ProcessNews = LinesPrinted | Gone | Working
MachineNews = Placed | MachineNotice | NoMachines | MachinesLeave


@dataclass
class _Running:
    name: str  # for the launcher; the engine keeps the name under which the process was started
    engine: Engine
    output: Output


class Processes:
    def __init__(self, home: LocalEngine, engine: Engine | None = None) -> None:
        """`home` is this machine's engine; `engine` starts processes that inherit nothing, by default `home` too."""
        self._home = home
        self._engine: Engine = home if engine is None else engine
        self._engines = (home,) if engine is None else (home, engine)
        self._running: dict[str, _Running] = {}  # by the engine's name
        self._machine_news: list[MachineNews] = []

    @property
    def sources(self) -> tuple[Source, ...]:
        """Readable when `poll` has something to return."""
        return self._engines

    def start(self, planned: JobProcess) -> None:
        """A command that cannot be run raises `UsageError`."""
        engine = self._home if planned.descriptors else self._engine
        if planned.descriptors:
            self._home.start(planned.spec, descriptors=planned.descriptors)
        else:
            engine.start(planned.spec)
        self._running[planned.name] = _Running(planned.name, engine, Output(planned.log))

    def become(self, name: str, planned: JobProcess, order: bytes) -> bool:
        """Send a running process the order that turns it into `planned`. Its output belongs to `planned` from now on.

        False if the process has ended. If it ends meanwhile, it does so under its new name.
        """
        running = self._running.get(name)
        if running is None:
            return False
        running.output.finish()
        running.name, running.output = planned.name, Output(planned.log)
        running.engine.send(name, order)
        return True

    def poll(self) -> tuple[ProcessNews, ...]:
        """What happened since the last call. Never blocks."""
        seen: list[ProcessNews] = []
        for engine in self._engines:
            for happened in engine.poll():
                seen += self._seen(happened)
        return tuple(seen)

    def machine_news(self) -> list[MachineNews]:
        """What the last calls of `poll` have heard about the machines."""
        news, self._machine_news = self._machine_news, []
        return news

    def _seen(self, happened: Happening) -> list[ProcessNews]:
        if isinstance(happened, MachineNews):
            self._machine_news.append(happened)
            return []
        running = self._running[happened.name]
        match happened:
            case Printed():
                lines = running.output.feed(happened.data)
            case Exited():
                del self._running[happened.name]
                lines = running.output.finish()
            case Working():
                return [Working(running.name)]
        said: list[ProcessNews] = [LinesPrinted(running.name, lines)] if lines else []
        if isinstance(happened, Exited):
            said.append(Gone(running.name, happened.code, tuple(running.output.last), happened.reason))
        return said

    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        """Signal these processes and their children. Ignores processes that have ended."""
        for engine in self._engines:
            started = [key for key, one in self._running.items() if one.engine is engine and one.name in names]
            if started:
                engine.send_signal(started, number)

    def stop(self, *, grace: float) -> tuple[ProcessNews, ...]:
        """End all processes and return when they are gone: SIGTERM, then SIGKILL after `grace` seconds (0: at once)."""
        seen: list[ProcessNews] = []
        if grace > 0:
            self._signal_all(signal.SIGTERM)
            limit = time.monotonic() + grace
            while self._running and (left := limit - time.monotonic()) > 0:
                wait_for(self.sources, min(left, LOOK_SECONDS))
                seen += self.poll()
        self._signal_all(signal.SIGKILL)
        while self._running:
            wait_for(self.sources, LOOK_SECONDS)
            seen += self.poll()
        return tuple(one for one in seen if not isinstance(one, Working))

    def _signal_all(self, number: signal.Signals) -> None:
        self.send_signal({one.name for one in self._running.values()}, number)
