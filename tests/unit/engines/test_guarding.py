"""The guardian, and what is ended how: real processes, killed in every order."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import Exited, ProcessSpec
from shoal.engines.local import LocalEngine

PATIENCE = 60.0
# Makes a semaphore with a name, which a resource tracker removes when this process does not, and says who is there.
WITH_TRACKER = """
import multiprocessing, os, sys, time
from multiprocessing import resource_tracker
context = multiprocessing.get_context("spawn")
lock = context.Lock()
resource_tracker.ensure_running()
print(resource_tracker._resource_tracker._pid, lock._semlock.name, flush=True)
END
"""
# A launcher whose processes each have a child in their process group and print its number.
WITH_CHILD = """
import subprocess, time
print(subprocess.Popen(['sleep', '1000']).pid, flush=True)
time.sleep(1000)
"""
LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
from shoal.engines.engine import Printed, ProcessSpec
from shoal.engines.local import LocalEngine
engine = LocalEngine()
code = CODE
for number, outlives in enumerate(map(float, sys.argv[1:])):
    command = (sys.executable, "-S", "-c", code)
    engine.start(ProcessSpec(f"p{number}", command, {}, outlives_launcher=outlives))
while True:
    for happened in engine.poll():
        if isinstance(happened, Printed):
            print(happened.data.decode(), end="", flush=True)
    time.sleep(0.02)
"""


def wait_until(is_so: object, what: str) -> None:
    assert callable(is_so)
    limit = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with contextlib.closing(LocalEngine()) as made:
        yield made


def words(engine: LocalEngine, count: int) -> list[str]:
    """The first words that its processes print."""
    found: list[str] = []
    while len(found) < count:
        assert select.select([engine], [], [], PATIENCE)[0]
        for happened in engine.poll():
            assert not isinstance(happened, Exited) or len(found) >= count, happened
            found += getattr(happened, "data", b"").decode().split()
    return found


def guardian_of(launcher: int) -> int | None:
    for child in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.Error):
            if any(word.endswith("guardian.py") for word in child.cmdline()):
                return child.pid
    return None


@contextlib.contextmanager
def launcher(*outlives: float) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launcher in a process of its own, and what it has started: processes and their children."""
    command = [sys.executable, "-c", LAUNCHER.replace("CODE", repr(WITH_CHILD)), *map(str, outlives)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(process.stdout.readline()) for _ in outlives]
        try:
            yield process, [*children, *(psutil.Process(child).ppid() for child in children)]
        finally:
            process.kill()


def test_a_guardian_that_is_killed_is_replaced_and_the_next_one_knows_everybody() -> None:
    with launcher(0.0, 0.0) as (process, started):
        for _ in range(2):
            first = guardian_of(process.pid)
            assert first is not None
            os.kill(first, signal.SIGKILL)
            wait_until(lambda first=first: guardian_of(process.pid) not in (None, first), "there is no other guardian")
        process.kill()
        for pid in started:
            wait_until(lambda pid=pid: not runs(pid), f"process {pid} has outlived its launcher")


def test_a_guardian_that_is_stopped_does_not_hold_the_launcher_up(engine: LocalEngine, tmp_path: Path) -> None:
    spec = ProcessSpec("p", (sys.executable, "-S", "-c", "import time; time.sleep(1000)"), {})
    engine.start(spec)
    guardian = guardian_of(os.getpid())
    assert guardian is not None
    os.kill(guardian, signal.SIGSTOP)
    for _ in range(10_000):  # more than a pipe holds
        engine._guarding.add(1 << 22, 0.0)
        engine._guarding.remove(1 << 22)
    wait_until(lambda: engine.poll() is not None and guardian_of(os.getpid()) != guardian, "it is not replaced")


def test_processes_end_although_launcher_and_guardian_are_killed_at_once() -> None:
    """Their children, which nobody is left to find, are not promised; what may outlive the launcher is told."""
    with launcher(0.0, 2.0) as (process, started):
        guardian = guardian_of(process.pid)
        assert guardian is not None
        os.kill(guardian, signal.SIGSTOP)  # so that it cannot notice first
        process.kill()
        os.kill(guardian, signal.SIGKILL)
        try:
            for pid in started[2:]:
                wait_until(lambda pid=pid: not runs(pid), f"process {pid} has outlived its launcher")
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "end",
    ["sys.exit(5)", "os._exit(5)", "os.kill(os.getpid(), 9)", "time.sleep(1000)"],
    ids=["exit", "_exit", "kill", "stop"],
)
def test_a_resource_tracker_may_sweep_before_its_group_is_gone(end: str, engine: LocalEngine, tmp_path: Path) -> None:
    code = WITH_TRACKER.replace("END", end)
    engine.start(ProcessSpec("p", (sys.executable, "-c", code), {}))
    tracker, name = words(engine, 2)[:2]  # the tracker says what it swept, perhaps at once
    assert end != "time.sleep(1000)" or Path(f"/dev/shm/sem.{name[1:]}").exists()
    if "sleep" not in end:
        wait_until(lambda: engine.poll() is not None and not engine._running, "it does not end")
    engine.close()
    assert not Path(f"/dev/shm/sem.{name[1:]}").exists()
    assert not runs(int(tracker))


def test_a_tracker_that_cannot_end_is_killed_after_its_time(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody in a session of its own still holds the pipe whose end it waits for."""
    monkeypatch.setattr("shoal.engines.guardian.SWEEP_SECONDS", 0.3)
    escape = """
import subprocess
child = subprocess.Popen(["setsid", "sleep", "1000"], pass_fds=[resource_tracker.getfd()])
print(child.pid, flush=True)
time.sleep(1000)
"""
    engine.start(ProcessSpec("p", (sys.executable, "-c", WITH_TRACKER.replace("END", escape)), {}))
    tracker, name, child = words(engine, 3)[:3]
    try:
        wait_until(lambda: os.getsid(int(child)) == int(child), "it did not make a session of its own")
        engine.close()
        wait_until(lambda: not runs(int(tracker)), "the tracker is still there")
    finally:
        os.kill(int(child), signal.SIGKILL)
        Path(f"/dev/shm/sem.{name[1:]}").unlink(missing_ok=True)


def test_trackers_may_sweep_too_when_the_launcher_was_killed(tmp_path: Path) -> None:
    inner = WITH_TRACKER.replace("END", "time.sleep(1000)")
    outer = LAUNCHER.replace("CODE", repr(inner)).replace('"-S", ', "")
    with subprocess.Popen([sys.executable, "-c", outer, "0.0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tracker, name = process.stdout.readline().split()
        assert Path(f"/dev/shm/sem.{name[1:]}").exists()
        process.kill()
    wait_until(lambda: not Path(f"/dev/shm/sem.{name[1:]}").exists(), "the semaphore is still there")
    wait_until(lambda: not runs(int(tracker)), "the tracker is still there")
