"""An allocation that the launcher asks for, and that ends with it: `salloc` with a small program that holds it.

The holder tells the allocation's variables and ends when its standard input does, also if the launcher is killed. While
Slurm lets the request wait, the kernel ends `salloc` with the launcher. Not here: what is asked for (`allocation`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

import msgspec

from shoal.engines import texts
from shoal.engines.slurm.allocation import Wish, salloc_command
from shoal.engines.slurm.slurm_programs import find_program, last_line
from shoal.errors import UsageError

HOLD = """
import json, os, sys
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("SLURM_")}), flush=True)
sys.stdin.read()
"""
LONGEST_LINE = 1024 * 1024  # bytes of the holder's line
LONGEST_WORDS = 64 * 1024  # bytes of what salloc says
END_SECONDS = 10.0  # that salloc may take to give an allocation back
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


class HeldAllocation:
    def __init__(self, wish: Wish) -> None:
        """Ask for it. Raises `UsageError` where there is no salloc."""
        command = salloc_command(find_program("salloc"), wish, (sys.executable, "-I", "-c", HOLD))
        self._is_given = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._salloc = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  it makes two system calls, and allocates nothing
        )

    def wait(self) -> dict[str, str]:
        """Slurm's variables, once it has given the allocation. Raises `UsageError` with its words if it does not."""
        assert self._salloc.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            select.select([self._salloc.stdout], [], [])
            data = self._salloc.stdout.read(65536)
            if not data or len(line) > LONGEST_LINE:
                raise UsageError(texts.allocation_refused(self._words()))
            line += data
        self._is_given = True
        return msgspec.json.decode(line, type=dict[str, str])

    def close(self) -> None:
        """Give it back, or the request. Safe to call twice."""
        assert self._salloc.stdin is not None
        assert self._salloc.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._salloc.stdin.close()
        if not self._is_given and self._salloc.poll() is None:
            self._salloc.send_signal(signal.SIGINT)  # takes the request back
        try:
            self._salloc.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._salloc.kill()
            self._salloc.wait()
        self._salloc.stdout.close()
        self._said.close()

    def _words(self) -> str:
        self._said.seek(0)
        return last_line(self._said.read(LONGEST_WORDS).decode("utf-8", "replace").splitlines())


def _die_with(launcher: int) -> Callable[[], None]:
    def before_exec() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # the launcher died before the line above
            os._exit(1)

    return before_exec
