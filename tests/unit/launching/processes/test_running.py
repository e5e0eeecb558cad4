"""The launcher's processes with a real engine: lines, logs, ends, and one that becomes another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines.engine import ProcessSpec
from shoal.engines.local import LocalEngine
from shoal.engines.waiting import wait_for
from shoal.launching.processes.running import Gone, JobProcess, LinesPrinted, Processes, ProcessNews
from support.engines import PATIENCE, PATIENT, python


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(LocalEngine()) as engine:
        yield Processes(engine)


def until(processes: Processes, *, lines: int = 0, ends: int = 0) -> list[ProcessNews]:
    """So many lines were printed, and so many processes have ended."""
    seen: list[ProcessNews] = []
    limit = time.monotonic() + PATIENCE
    while len(said(seen)) < lines or sum(isinstance(one, Gone) for one in seen) < ends:
        assert time.monotonic() < limit, seen
        wait_for(processes.sources, 1.0)
        seen += processes.poll()
    return seen


def said(seen: list[ProcessNews]) -> list[str]:
    return [line for one in seen if isinstance(one, LinesPrinted) for line in one.lines]


def test_lines_the_log_and_the_last_lines(processes: Processes, tmp_path: Path) -> None:
    code = "import sys; print('one\\r1', flush=True); sys.stderr.write('two'); sys.exit(7)"
    processes.start(JobProcess(python(code), tmp_path / "log"))
    seen = until(processes, ends=1)
    assert said(seen) == ["1", "two"]
    assert seen[-1] == Gone("p", 7, ("1", "two"))
    assert (tmp_path / "log").read_bytes() == b"one\r1\ntwo"


def test_a_log_that_cannot_be_made_costs_the_log_only(processes: Processes, tmp_path: Path) -> None:
    processes.start(JobProcess(python("print('here')"), tmp_path / "missing" / "log"))
    lines = said(until(processes, ends=1))
    assert "here" in lines
    assert any("no more is written to" in line for line in lines)


def test_a_process_that_becomes_another_prints_under_its_new_name(processes: Processes, tmp_path: Path) -> None:
    code = "print('up', flush=True); print(input())"
    processes.start(JobProcess(python(code, name="spare", takes_input=True), tmp_path / "spare.log"))
    until(processes, lines=1)
    worker = JobProcess(ProcessSpec("worker 7", (), {}), tmp_path / "7.log")
    assert processes.become("spare", worker, b"going\n")
    assert until(processes, ends=1)[-1] == Gone("worker 7", 0, ("going",))
    assert ((tmp_path / "spare.log").read_text(), (tmp_path / "7.log").read_text()) == ("up\n", "going\n")
    assert not processes.become("spare", worker, b"going\n")


@pytest.mark.parametrize(
    ("handler", "grace", "code"),
    [("lambda *_: sys.exit(5)", 60.0, 5), ("signal.SIG_IGN", 0.5, -9)],
    ids=["soft", "deaf"],
)
def test_stop_is_soft_first_and_hard_for_the_deaf(processes: Processes, handler: str, grace: float, code: int) -> None:
    lines = ("import signal, sys, time", f"signal.signal(15, {handler})", "print('up', flush=True)", PATIENT)
    processes.start(JobProcess(python("\n".join(lines)), None))
    until(processes, lines=1)
    assert processes.stop(grace=grace) == (Gone("p", code, ("up",)),)
    assert processes.stop(grace=grace) == ()


def test_what_inherits_files_runs_here_and_all_else_on_the_engine_of_the_job(tmp_path: Path) -> None:
    with (
        contextlib.closing(LocalEngine()) as home,
        contextlib.closing(LocalEngine()) as elsewhere,
        (tmp_path / "file").open("wb", buffering=0) as file,
    ):
        processes = Processes(home, elsewhere)
        code = f"import os; os.write({file.fileno()}, b'here'); print('up', flush=True)\nimport time\n{PATIENT}"
        processes.start(JobProcess(python(code, name="at home"), None, descriptors=(file.fileno(),)))
        processes.start(JobProcess(python(f"import time\nprint('up', flush=True)\n{PATIENT}", name="away"), None))
        until(processes, lines=2)
        assert (tmp_path / "file").read_bytes() == b"here"
        assert [len(engine._running) for engine in (home, elsewhere)] == [1, 1]
        assert {one.name for one in processes.stop(grace=0.0)} == {"at home", "away"}
