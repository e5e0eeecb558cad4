"""Processes on this machine: one session and process group each, output through pipes, exits through pidfds.

Linux only. Ending a process ends its whole group, so what it started (DataLoader workers) goes with it; only a child
that made itself a session of its own escapes. Nothing survives a launcher that was killed: the kernel kills the
processes (parent-death signal) and the guardian their groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shoal.engines.engine import Engine, Exited, Happening, Printed, ProcessSpec, Working
from shoal.engines.output import Output
from shoal.environment import inherited
from shoal.errors import UsageError

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
READ_BYTES = 64 * 1024
LOOK_SECONDS = 1.0  # between two looks at who uses the processor
PIPE_BYTES = 1024 * 1024  # no pipe of an ordinary user holds more
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Process:
    """A started process. Its pid stays ours until it is reaped, so signals to its group cannot hit a stranger."""

    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    pipe: int
    output: Output
    pipe_open: bool = True
    ticks: int = 0  # processor time it had used when last looked at


class LocalEngine(Engine):
    def __init__(self, private_files: tuple[Path, ...] = ()) -> None:
        """`private_files`, each alone in its folder, are removed with it when the launcher is killed."""
        self._private_files = private_files
        self._selector = selectors.EpollSelector()
        self._running: dict[str, _Process] = {}
        self._guardian: subprocess.Popen[str] | None = None
        self._looked = time.monotonic()

    def start(self, spec: ProcessSpec) -> None:
        guardian = self._guardian or self._start_guardian()
        try:
            popen = subprocess.Popen(
                spec.command,
                env=inherited(spec.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                pass_fds=spec.descriptors,
                preexec_fn=None if spec.outlives_launcher else _die_with(os.getpid()),  # noqa: PLW1509  takes no lock
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"{spec.name} could not be started: {error}; the command was {spec.command[0]}") from None
        _tell(guardian, f"+{popen.pid} {spec.outlives_launcher}")
        pipe = _descriptor(popen.stdout)
        os.set_blocking(pipe, False)
        process = _Process(spec.name, popen, os.pidfd_open(popen.pid), pipe, Output(spec.log))
        self._running[spec.name] = process
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)
        self._selector.register(process.pipe, selectors.EVENT_READ, process)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[Happening, ...]:
        return (*self._collect(timeout=0.0), *self._working())

    def send_signal(self, name: str, number: signal.Signals) -> None:
        if name in self._running:
            self._signal(self._running[name], number)

    def rename(self, name: str, to: str, *, log: Path) -> bool:
        process = self._running.pop(name, None)
        if process is None:
            return False
        process.output.finish()
        process.name, process.output = to, Output(log)
        self._running[to] = process
        return True

    def stop(self, *, grace: float) -> tuple[Happening, ...]:
        happened: list[Happening] = []
        if grace > 0:
            for process in self._running.values():
                self._signal(process, signal.SIGTERM)
            limit = time.monotonic() + grace
            while self._running and (left := limit - time.monotonic()) > 0:
                happened += self._collect(timeout=left)
        for process in self._running.values():
            self._signal(process, signal.SIGKILL)
        while self._running:
            happened += self._collect(timeout=None)
        return tuple(happened)

    def close(self) -> None:
        self.stop(grace=0.0)
        self._selector.close()
        if self._guardian is not None:
            assert self._guardian.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._guardian.stdin.close()
            self._guardian.wait()
            self._guardian = None

    def _working(self) -> list[Happening]:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = time.monotonic()
        found: list[Happening] = []
        for process in self._running.values():
            ticks = _processor_ticks(process.popen.pid)
            if ticks > process.ticks:
                process.ticks = ticks
                found.append(Working(process.name))
        return found

    def _collect(self, *, timeout: float | None) -> tuple[Happening, ...]:
        happened: list[Happening] = []
        ended: list[_Process] = []
        for key, _events in self._selector.select(timeout):
            process: _Process = key.data
            if key.fd == process.pidfd:
                ended.append(process)
            elif lines := self._read(process):
                happened.append(Printed(process.name, lines))
        for process in ended:
            happened += self._reap(process)
        return tuple(happened)

    def _read(self, process: _Process, *, limit: int = READ_BYTES) -> tuple[str, ...]:
        """At most about `limit` bytes, so that a process that prints without end cannot hold up the others."""
        lines: list[str] = []
        while process.pipe_open and limit > 0:
            try:
                data = os.read(process.pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._close_pipe(process)
            lines += process.output.feed(data)
            limit -= READ_BYTES
        return tuple(lines)

    def _close_pipe(self, process: _Process) -> None:
        self._selector.unregister(process.pipe)
        assert process.popen.stdout is not None
        process.popen.stdout.close()
        process.pipe_open = False

    def _reap(self, process: _Process) -> list[Happening]:
        # The group dies before the reap: until then the zombie keeps the number from being given to others.
        self._signal(process, signal.SIGKILL)
        lines = self._read(process, limit=PIPE_BYTES)
        if process.pipe_open:
            self._close_pipe(process)
        lines += process.output.finish()
        if self._guardian is not None:
            _tell(self._guardian, f"-{process.popen.pid}")
        code = process.popen.wait()
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        del self._running[process.name]
        return [
            *([Printed(process.name, lines)] if lines else []),
            Exited(process.name, code, tuple(process.output.last)),
        ]

    def _signal(self, process: _Process, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.popen.pid, number)

    def _start_guardian(self) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("guardian.py")
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), *map(str, self._private_files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
        return self._guardian


def _die_with(launcher: int) -> Callable[[], None]:
    def before_exec() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return before_exec


def _tell(guardian: subprocess.Popen[str], line: str) -> None:
    assert guardian.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed it; the parent-death signal is still there
        guardian.stdin.write(line + "\n")


def _processor_ticks(pid: int) -> int:
    """User and system time of a process, in the kernel's ticks; 0 when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # a name may hold anything, also spaces; fields count from the third
    return int(fields[11]) + int(fields[12])


def _descriptor(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()
