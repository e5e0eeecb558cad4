"""Processes on this machine: one session and process group each, output through pipes, exits through pidfds.

Linux only. Ending a process ends its whole group, and with it the processes that it started (DataLoader workers); only
a child that made a session of its own escapes. Python's resource trackers get a moment to remove what killed processes
left in /dev/shm. Nothing survives a launcher that was killed: the kernel kills the processes (parent-death signal), the
guardian their groups. Files need no copying: a variable names the launcher's own path.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shoal.engines import guardian
from shoal.engines.engine import Engine, Exited, Happening, Printed, ProcessSpec, Working, not_started
from shoal.engines.guarding import Guarding
from shoal.environment import inherited
from shoal.errors import UsageError

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
READ_BYTES = 64 * 1024
LOOK_SECONDS = 1.0  # between two checks of which processes use the processor
PIPE_BYTES = 1024 * 1024  # the most that an ordinary user's pipe holds
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Process:
    """A started process. Its pid stays ours until it is reaped, so signals to its group cannot hit a stranger."""

    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    pipe: int
    pipe_open: bool = True
    ticks: int = 0  # processor time that it had used at the last check


@dataclass(eq=False)
class _Sweeping:
    """A process that has ended. It is reaped only after the resource trackers of its group have ended too."""

    popen: subprocess.Popen[bytes]
    trackers: list[int]  # pidfds
    limit: float  # by time.monotonic


class LocalEngine(Engine):
    def __init__(self, private_files: tuple[Path, ...] = ()) -> None:
        """`private_files`, each with its folder, are removed when the launcher is killed."""
        self._selector = selectors.EpollSelector()
        self._running: dict[str, _Process] = {}
        self._sweeping: list[_Sweeping] = []
        self._guarding = Guarding(private_files)
        self._looked = time.monotonic()

    def start(self, spec: ProcessSpec, *, descriptors: tuple[int, ...] = ()) -> None:
        """`descriptors`: open files that the process inherits under the same numbers, which only works locally."""
        if self._guarding.pidfd is None and not self._running:
            self._guarding.start()
            self._watch_guardian()
        try:
            popen = subprocess.Popen(
                spec.command,
                env=inherited({**spec.variables, **{file.variable: str(file.path) for file in spec.files}}),
                stdin=subprocess.PIPE if spec.takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                pass_fds=descriptors,
                preexec_fn=_die_with(os.getpid(), softly=spec.outlives_launcher > 0),  # noqa: PLW1509  takes no lock
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(not_started(spec, error)) from None
        self._guarding.add(popen.pid, spec.outlives_launcher)
        pipe = _descriptor(popen.stdout)
        os.set_blocking(pipe, False)
        process = _Process(spec.name, popen, os.pidfd_open(popen.pid), pipe)
        self._running[spec.name] = process
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)
        self._selector.register(process.pipe, selectors.EVENT_READ, process)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[Happening, ...]:
        return (*self._collect(timeout=0.0), *self._working())

    def send(self, name: str, data: bytes) -> None:
        process = self._running.get(name)
        if process is None:
            return
        assert process.popen.stdin is not None, f"{name} takes no input"
        with contextlib.suppress(BrokenPipeError), process.popen.stdin as pipe:
            rest = memoryview(data)
            while rest:
                rest = rest[pipe.write(rest) or 0 :]

    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        processes = [self._running[name] for name in names if name in self._running]
        if number == signal.SIGKILL:
            self._kill(processes)
        else:
            guardian.signal_groups([process.popen.pid for process in processes], number)

    def close(self) -> None:
        self._kill(self._running.values())
        while self._running or self._sweeping:
            self._collect(timeout=None)
        self._selector.close()
        self._guarding.close()

    def _working(self) -> list[Happening]:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = time.monotonic()
        if self._guarding.pidfd is None and self._running:
            self._guarding.replace()
            self._watch_guardian()
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
        due = min((each.limit for each in self._sweeping), default=math.inf) - time.monotonic()
        patience = min(math.inf if timeout is None else timeout, max(0.0, due))
        for key, _events in self._selector.select(None if patience == math.inf else patience):
            if isinstance(key.data, _Process):
                process = key.data
                if key.fd == process.pidfd:
                    ended.append(process)
                elif data := self._read(process):
                    happened.append(Printed(process.name, data))
            elif isinstance(key.data, _Sweeping):
                self._unwatch(key.fd)
                key.data.trackers.remove(key.fd)
            else:
                self._selector.unregister(key.fd)
                self._guarding.replace()
                self._watch_guardian()
        for process in ended:
            happened += self._reap(process)
        for sweeping in [each for each in self._sweeping if not each.trackers or each.limit <= time.monotonic()]:
            self._swept(sweeping)
        return tuple(happened)

    def _read(self, process: _Process, *, limit: int = READ_BYTES) -> bytes:
        """Read about `limit` bytes at most, so that a process that prints without end cannot hold up the others."""
        found = b""
        while process.pipe_open and limit > 0:
            try:
                data = os.read(process.pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._close_pipe(process)
            found += data
            limit -= READ_BYTES
        return found

    def _close_pipe(self, process: _Process) -> None:
        self._selector.unregister(process.pipe)
        assert process.popen.stdout is not None
        process.popen.stdout.close()
        process.pipe_open = False

    def _reap(self, process: _Process) -> list[Happening]:
        # Kill the group before reaping: until then the zombie keeps its number from being reused.
        trackers = guardian.kill_groups([process.popen.pid])
        data = self._read(process, limit=PIPE_BYTES)
        if process.pipe_open:
            self._close_pipe(process)
        if process.popen.stdin is not None:
            process.popen.stdin.close()
        self._unwatch(process.pidfd)
        sweeping = _Sweeping(process.popen, trackers, time.monotonic() + guardian.SWEEP_SECONDS)
        for tracker in trackers:
            self._selector.register(tracker, selectors.EVENT_READ, sweeping)
        self._sweeping.append(sweeping)
        del self._running[process.name]
        return [
            *([Printed(process.name, data)] if data else []),
            Exited(process.name, _exit_code(process.popen.pid)),
        ]

    def _swept(self, sweeping: _Sweeping) -> None:
        """A group is gone, or its trackers have used up their time."""
        for tracker in sweeping.trackers:
            guardian.kill(tracker)
            self._unwatch(tracker)
        self._sweeping.remove(sweeping)
        self._guarding.remove(sweeping.popen.pid)
        sweeping.popen.wait()

    def _unwatch(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)

    def _watch_guardian(self) -> None:
        if self._guarding.pidfd is not None:
            self._selector.register(self._guarding.pidfd, selectors.EVENT_READ, self._guarding)

    def _kill(self, processes: Iterable[_Process]) -> None:
        """Kill each process with its group. Resource trackers are handled when the process has ended."""
        for tracker in guardian.kill_groups([process.popen.pid for process in processes]):
            os.close(tracker)


def _die_with(launcher: int, *, softly: bool) -> Callable[[], None]:
    """The kernel kills the process when the launcher dies; if `softly`, by SIGTERM, so that it can write its record."""

    def before_exec() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM if softly else signal.SIGKILL)
        if os.getppid() != launcher:  # the launcher died before the line above
            os._exit(1)

    return before_exec


def _exit_code(pid: int) -> int:
    """The exit status of a process that has ended, without reaping it: -9 for a SIGKILL."""
    known = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert known is not None
    return known.si_status if known.si_code == os.CLD_EXITED else -known.si_status


def _processor_ticks(pid: int) -> int:
    """User and system time of a process, in the kernel's ticks; 0 when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # from the third field on; the second, the name, may hold anything
    return int(fields[11]) + int(fields[12])


def _descriptor(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()
