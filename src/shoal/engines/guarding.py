"""The launcher's end of the guardian: keeps one running, and has it know every process group there is.

A guardian that ends, whoever killed it, is replaced; the next one is told of all groups anew. Not here: what the
guardian does when the launcher is gone (`guardian`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from shoal.errors import UsageError

PAUSE_SECONDS = 1.0  # between two starts, where guardians end at once
END_SECONDS = 5.0  # that it may take to end when it is not needed any more


class Guarding:
    """Driven by one thread. `pidfd` changes whenever there is another guardian."""

    def __init__(self, private_files: tuple[Path, ...]) -> None:
        """`private_files`, each alone in its folder, are removed with it when the launcher is killed."""
        self._private_files = private_files
        self._groups: dict[int, float] = {}  # seconds that each may outlive the launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0  # by time.monotonic
        self.pidfd: int | None = None  # readable when the guardian has ended; None while there is none

    def start(self) -> None:
        """Before the first process. `UsageError`: it cannot be."""
        try:
            self._start()
        except OSError as error:
            raise UsageError(f"the job's guardian process could not be started: {error.strerror}") from None

    def add(self, group: int, seconds: float) -> None:
        self._groups[group] = seconds
        self._tell(f"+{group} {seconds}\n")

    def remove(self, group: int) -> None:
        if self._groups.pop(group, None) is not None:
            self._tell(f"-{group}\n")

    def replace(self) -> None:
        """The guardian has ended, or could not be started before. A new one knows all groups, or is tried for later."""
        self._forget()
        if time.monotonic() - self._started >= PAUSE_SECONDS:
            with contextlib.suppress(OSError):
                self._start()

    def close(self) -> None:
        """No group is left for it. Safe to call twice."""
        self._forget()

    def _start(self) -> None:
        self._started = time.monotonic()
        script = str(Path(__file__).with_name("guardian.py"))
        known = (f"+{group} {seconds}" for group, seconds in self._groups.items())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, *known, *map(str, self._private_files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.pidfd = os.pidfd_open(self._process.pid)

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except BlockingIOError:
            self._process.kill()  # it has been stopped for long, and guards nothing; the next one is told all
        except BrokenPipeError:
            pass  # it has just ended, which its pidfd tells

    def _forget(self) -> None:
        """Let it end: at the end of its input it ends the groups that it knows of, and none is left."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()
        if self.pidfd is not None:
            os.close(self.pidfd)
        self._process = self.pidfd = None
