"""The local engine with real processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import Exited, Happening, Printed, ProcessSpec, Working, describe_exit
from shoal.engines.local import LocalEngine
from shoal.errors import UsageError


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    before = {process.pid for process in psutil.Process().children()}
    made = LocalEngine()
    yield made
    made.close()
    assert {process.pid for process in psutil.Process().children()} <= before


def spec(folder: Path, code: str, *, name: str = "p", variables: dict[str, str] | None = None) -> ProcessSpec:
    command = (sys.executable, "-S", "-c", code)
    return ProcessSpec(name=name, command=command, variables=variables or {}, log=folder / f"{name}.log")


def until_exits(engine: LocalEngine, count: int = 1) -> list[Happening]:
    happened: list[Happening] = []
    limit = time.monotonic() + 60
    while sum(isinstance(one, Exited) for one in happened) < count:
        assert select.select([engine], [], [], limit - time.monotonic())[0], happened
        happened += engine.poll()
    return happened


def printed(happened: list[Happening]) -> list[str]:
    return [line for one in happened if isinstance(one, Printed) for line in one.lines]


def test_output_and_exit_code_arrive_in_order(engine: LocalEngine, tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['A'], flush=True); print('error', file=sys.stderr); sys.exit(7)"
    engine.start(spec(tmp_path, code, variables={"A": "1"}))
    happened = until_exits(engine)
    assert printed(happened) == ["1", "error"]
    assert happened[-1] == Exited("p", 7, ("1", "error"))
    assert (tmp_path / "p.log").read_text() == "1\nerror\n"


def test_large_output_of_a_process_that_ends_is_not_lost(engine: LocalEngine, tmp_path: Path) -> None:
    engine.start(spec(tmp_path, "print('\\n'.join(map(str, range(50000))))"))
    assert printed(until_exits(engine)) == [str(number) for number in range(50000)]


def test_signal_deaths_are_negative_codes(engine: LocalEngine, tmp_path: Path) -> None:
    engine.start(spec(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert until_exits(engine)[-1] == Exited("p", -9, ())


def test_children_of_a_process_end_with_it(engine: LocalEngine, tmp_path: Path) -> None:
    engine.start(
        spec(tmp_path, "import os\npid = os.fork()\nif pid == 0:\n    os.execlp('sleep', 'sleep', '1000')\nprint(pid)")
    )
    [pid] = printed(until_exits(engine))
    psutil.wait_procs([process] if (process := _process(int(pid))) else [], timeout=30)
    assert not _runs(int(pid))


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# In short sleeps: Python sleeps through a signal that comes between its last look for one and the system call.
PATIENT = "while True: time.sleep(0.05)"


def until_up(engine: LocalEngine, count: int) -> None:
    """So many lines were printed."""
    up: list[str] = []
    while len(up) < count:
        assert select.select([engine], [], [], 60)[0]
        up += printed(list(engine.poll()))


@pytest.mark.parametrize(
    ("handler", "grace", "code"),
    [("lambda *_: sys.exit(5)", 60.0, 5), ("signal.SIG_IGN", 0.5, -signal.SIGKILL)],
    ids=["soft", "deaf"],
)
def test_stop_is_soft_first_and_hard_for_the_deaf(
    engine: LocalEngine, tmp_path: Path, handler: str, grace: float, code: int
) -> None:
    lines = ("import signal, sys, time", f"signal.signal(15, {handler})", "print('up', flush=True)", PATIENT)
    engine.start(spec(tmp_path, "\n".join(lines)))
    until_up(engine, 1)
    assert [one.code for one in engine.stop(grace=grace) if isinstance(one, Exited)] == [code]
    assert engine.stop(grace=grace) == ()


def test_a_signal_reaches_one_process_only(engine: LocalEngine, tmp_path: Path) -> None:
    code = f"""
import time
try:
    print("up", flush=True)
    {PATIENT}
except KeyboardInterrupt:
    print("stopped")
"""
    engine.start(spec(tmp_path, code, name="a"))
    engine.start(spec(tmp_path, code, name="b"))
    until_up(engine, 2)
    engine.send_signal("a", signal.SIGINT)
    happened = until_exits(engine)
    assert happened[-1] == Exited("a", 0, ("up", "stopped"))
    engine.send_signal("a", signal.SIGINT)  # it has ended: nothing happens
    assert [one for one in engine.stop(grace=0.0) if isinstance(one, Exited)] == [Exited("b", -9, ("up",))]


def test_a_process_that_is_renamed_prints_under_its_new_name(engine: LocalEngine, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    code = f"import os; print('up', flush=True); os.read({reader}, 1); print('going')"
    base = spec(tmp_path, code, name="spare")
    engine.start(ProcessSpec(base.name, base.command, {}, base.log, descriptors=(reader,)))
    os.close(reader)
    until_up(engine, 1)
    assert engine.rename("spare", "worker 7", log=tmp_path / "7.log")
    os.write(writer, b"x")
    os.close(writer)
    assert until_exits(engine)[-1] == Exited("worker 7", 0, ("going",))
    assert ((tmp_path / "spare.log").read_text(), (tmp_path / "7.log").read_text()) == ("up\n", "going\n")
    assert not engine.rename("spare", "worker 8", log=tmp_path / "8.log")


def test_a_log_that_cannot_be_made_costs_the_log_only(engine: LocalEngine, tmp_path: Path) -> None:
    base = spec(tmp_path, "print('here')")
    engine.start(ProcessSpec(base.name, base.command, {}, tmp_path / "missing" / "p.log"))
    lines = printed(until_exits(engine))
    assert "here" in lines
    assert any("no more is written to" in line for line in lines)


def test_inherited_descriptors_keep_their_numbers(engine: LocalEngine, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, b'here')"
    base = spec(tmp_path, code)
    engine.start(ProcessSpec(base.name, base.command, {}, base.log, descriptors=(writer,)))
    os.close(writer)
    until_exits(engine)
    assert os.read(reader, 10) == b"here"
    os.close(reader)


def test_command_that_does_not_exist_is_a_usage_error(engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="/no/such/program"):
        engine.start(ProcessSpec("p", ("/no/such/program",), {}, tmp_path / "log"))


def test_private_files_go_when_the_launcher_is_gone(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    token = tmp_path / "private/token"
    token.write_text("secret")
    engine = LocalEngine((token,))
    engine.start(spec(tmp_path, "pass"))
    engine.close()
    assert not token.parent.exists()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (7, "exited with code 7"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_exits_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_process_that_computes_is_seen_at_work_and_one_that_sleeps_is_not(
    engine: LocalEngine, tmp_path: Path
) -> None:
    engine.start(spec(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(100)", name="idle"))
    until_up(engine, 1)
    engine.start(spec(tmp_path, "while True: pass", name="busy"))
    seen: list[str] = []
    limit = time.monotonic() + 60
    while seen.count("busy") < 4 and time.monotonic() < limit:
        select.select([engine], [], [], 0.2)
        seen += [happened.name for happened in engine.poll() if isinstance(happened, Working)]
    assert seen.count("busy") >= 4
    assert seen.count("idle") <= 2  # what it had used until then
