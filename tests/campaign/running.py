"""A job of a campaign while it runs: its processes by kind, what it has said so far, and how it ended."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from shoal import events
from shoal.files import whole_lines
from support.launcher import command_of, processes_in

SCRIPT = Path(__file__).parent / "script.py"
PATIENCE = 240.0  # seconds; only a job that hangs takes so long


@dataclass(frozen=True)
class Joined:
    """What came of somebody who joined with `shoal join`."""

    arguments: tuple[str, ...]  # of its script; none: it is as the job's workers are
    code: int
    output: str


@dataclass
class Outcome:
    """What is judged."""

    code: int
    output: str
    signals: list[str]  # that were sent, in words
    joined: list[Joined] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # what was wrong already while it ran


class Running:
    def __init__(self, folder: Path, process: subprocess.Popen[Any], *, run_dir: Path) -> None:
        self.folder = folder
        self.process = process
        self.run_dir = run_dir
        self.signals: list[str] = []
        self.began = time.monotonic()

    def events(self) -> list[events.AnyEvent]:
        return events_of(self.run_dir)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events() if isinstance(event, kind)]

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def processes(self) -> dict[str, list[psutil.Process]]:
        """By kind: worker, spare, server, coordinator, guardian, joiner."""
        found: dict[str, list[psutil.Process]] = {}
        for process in processes_in(self.folder):
            if process.pid != self.process.pid:
                found.setdefault(kind_of(command_of(process)), []).append(process)
        return found

    def wait_until(self, is_there: Callable[[], Any]) -> bool:
        """False where the job ended before, or took too long."""
        limit = time.monotonic() + PATIENCE
        while not is_there():
            if self.is_over or time.monotonic() > limit:
                return False
            time.sleep(0.05)
        return True

    def send(self, victim: psutil.Process, signal_name: str, kind: str) -> bool:
        with contextlib.suppress(psutil.Error):
            getattr(victim, {"KILL": "kill", "STOP": "suspend", "TERM": "terminate"}[signal_name])()
            self.signals.append(f"{time.monotonic() - self.began:.1f}s SIG{signal_name} {kind} {victim.pid}")
            return True
        return False

    def end(self) -> int:
        """Wait for it; a job that hangs is killed, and its code is that of SIGKILL."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def events_of(run_dir: Path) -> list[events.AnyEvent]:
    """Those of the record so far. What a full disk or a kill has cut in two is left out, as `shoal show` does."""
    found: list[events.AnyEvent] = []
    with contextlib.suppress(FileNotFoundError):
        for line in whole_lines(run_dir / "events.jsonl"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=events.Record).event)
    return found


def kind_of(command: list[str]) -> str:
    words = set(command)
    if any(word.endswith("guardian.py") for word in command):
        return "guardian"
    if "shoal.entry.spare" in words:
        return "spare"
    for name in ("coordinator", "server", "join"):
        if "shoal" in words and name in words:
            return name if name != "join" else "joiner"
    is_script = len(command) > 1 and command[1].endswith(SCRIPT.name)
    return "worker" if is_script else "other"
