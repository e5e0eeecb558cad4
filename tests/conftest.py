"""Settings for every test, and the rule that a test leaves nothing behind: no thread and no process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

from support import second_try

# Some virtual machines announce AMX and then fault on it; oneDNN reads this once, when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How wide the terminal is must not decide what commands print here; those that run tests side by side say 80.
os.environ.pop("COLUMNS", None)

# In the background of a shell Ctrl-C is ignored, and under nohup a closed terminal is. Processes that tests start would
# inherit that; a handler in place of the setting is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)

# How long an example takes is the machine's business. Under CI it is so by itself.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("patient"), max_examples=25)
settings.load_profile("patient")

DEFERRED = pytest.StashKey[int]()  # failed tests that are tried again by CI when the rest has run
PATIENCE = 5.0  # seconds that something which is ending may take
# Of Python's own multiprocessing: started with its first use and meant to stay.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _processes() -> list[psutil.Process]:
    """All below this one. That there is none is one call of the system; to look through all its processes is not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return psutil.Process().children(recursive=True)


def _left_over(threads: set[int], processes: set[int]) -> list[str]:
    found = [f"thread {thread.name}" for thread in threading.enumerate() if thread.ident not in threads]
    for process in _processes():
        with contextlib.suppress(psutil.Error):  # it has just ended
            command = " ".join(process.cmdline())
            if process.pid not in processes and not any(helper in command for helper in HELPERS):
                found.append(f"process {process.pid} {command[:200]}")
    return found


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    threads = {thread.ident for thread in threading.enumerate() if thread.ident is not None}
    processes = {process.pid for process in _processes()}
    yield
    limit = time.monotonic() + PATIENCE
    while (found := _left_over(threads, processes)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not found, f"the test left behind: {found}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under CI a skipped test is a failed one: what it would have shown is not known."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):  # a process of pytest-xdist: the first one hears all
        return
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    session.config.stash[DEFERRED] = second_try.note_failures(session, failed)
    if os.environ.get("CI") and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("CI") and skipped:
        terminalreporter.write_line(
            f"{len(skipped)} skipped: with the variable CI set that fails, as what they would show is not known",
            red=True,
        )
    if deferred := terminalreporter.config.stash.get(DEFERRED, 0):
        terminalreporter.write_line(f"{deferred} failed: each gets a second try, alone, after the rest", red=True)
