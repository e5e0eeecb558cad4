"""The launcher's end of the guardian: keeps one running, and tells it of every process group.

A guardian that ends is replaced; the next one is told of all groups again. Not here: what the guardian does when the
launcher is gone (`guardian`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from shoal.engines.engine import no_guardian
from shoal.errors import UsageError

PAUSE_SECONDS = 1.0  # at least, between two starts of a guardian
END_SECONDS = 5.0  # that a guardian may take to end when it is no longer needed


class Guarding:
    """Driven by one thread. `pidfd` changes whenever there is another guardian."""

    def __init__(self, private_files: tuple[Path, ...]) -> None:
        """The guardian removes `private_files`, each with its folder, when the launcher is killed. A folder among them
        goes with everything in it.
        """
        self._private_files = private_files
        self._groups: dict[int, float] = {}  # by process group: seconds that it may outlive the launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0  # by time.monotonic
        self.pidfd: int | None = None  # readable when the guardian has ended; None while there is none

    def start(self) -> None:
        """Call before the first process is started. Raises `UsageError` if it fails."""
        try:
            self._start()
        except OSError as error:
            raise UsageError(no_guardian(error.strerror)) from None

    def add(self, group: int, seconds: float) -> None:
        self._groups[group] = seconds
        self._tell(f"+{group} {seconds}\n")

    def remove(self, group: int) -> None:
        if self._groups.pop(group, None) is not None:
            self._tell(f"-{group}\n")

    def replace(self) -> None:
        """The guardian has ended, or could not be started before: start another one, or leave that for later."""
        self._forget()
        if time.monotonic() - self._started >= PAUSE_SECONDS:
            with contextlib.suppress(OSError):
                self._start()

    def close(self) -> None:
        """Call when no group is left. Safe to call twice."""
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
            start_new_session=True,  # a Ctrl-C in the terminal must not reach it
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
            self._process.kill()  # it has been stopped for long and guards nothing; the next one is told of all groups
        except BrokenPipeError:
            pass  # it has just ended; its pidfd reports that

    def _forget(self) -> None:
        """Close its input, at whose end the guardian kills the groups that it knows of (none are left) and ends."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # somebody stopped it (SIGSTOP)
            self._process.kill()
            self._process.wait()
        if self.pidfd is not None:
            os.close(self.pidfd)
        self._process = self.pidfd = None
