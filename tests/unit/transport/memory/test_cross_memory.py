"""Reading another process's memory, and telling by it that the process is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shoal.transport.memory import cross_memory
from shoal.transport.memory.arena import address_of


def test_a_process_is_gone_once_it_is_killed_and_not_before() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not cross_memory.is_gone(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        assert not cross_memory.is_gone(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and its number not yet free
        assert cross_memory.is_gone(process.pid)
    assert cross_memory.is_gone(process.pid)


def test_this_process_is_there() -> None:
    assert not cross_memory.is_gone(os.getpid())


def test_memory_of_a_dead_process_cannot_be_read() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = bytearray(8)
    with pytest.raises(ProcessLookupError):
        cross_memory.read(process.pid, address_of(here), address_of(here), len(here))
