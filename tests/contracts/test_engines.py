"""What every engine must do, wherever it starts its processes: here, in namespaces, on nodes and in real clusters."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import BroughtFile, Engine, Exited
from shoal.errors import UsageError
from support.engine_places import EnginePlace, engine_place, place_parameters
from support.engines import PATIENCE, PATIENT, printed, python, until_exits, until_printed
from support.launcher import command_of

END_SECONDS = 15.0  # after which nothing is left of a launcher that was killed


@pytest.fixture(scope="module", params=place_parameters())
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePlace]:
    """A machine or a cluster for all tests, which end before the next one is made."""
    with engine_place(request.param, tmp_path_factory.mktemp("place")) as made:
        yield made


@pytest.fixture
def engine(place: EnginePlace) -> Iterator[Engine]:
    """With room for one process. Room costs seconds where others' programs give it."""
    yield from opened(place, 1)


@pytest.fixture
def roomy_engine(place: EnginePlace) -> Iterator[Engine]:
    """With room for three."""
    yield from opened(place, 3)


def opened(place: EnginePlace, workers: int) -> Iterator[Engine]:
    before = {process.pid for process in psutil.Process().children()}
    with contextlib.closing(place.open(workers)) as engine:
        yield engine
    assert {process.pid for process in psutil.Process().children()} <= before


def test_output_comes_byte_for_byte_and_before_the_exit_code(engine: Engine) -> None:
    code = """
import os, sys
os.write(1, os.environ["A"].encode() + b"\\r\\xff\\n")
os.write(2, b"error")
sys.exit(7)
"""
    engine.start(python(code, variables={"A": "1"}))
    happened = until_exits(engine)
    assert printed(happened) == b"1\r\xff\nerror"
    assert happened[-1] == Exited("p", 7)


def test_large_output_of_a_process_that_ends_is_not_lost(engine: Engine) -> None:
    engine.start(python("print('\\n'.join(map(str, range(50000))))"))
    assert printed(until_exits(engine)).split() == [b"%d" % number for number in range(50000)]


def test_signal_deaths_are_negative_codes(engine: Engine) -> None:
    engine.start(python("import os; os.kill(os.getpid(), 9)"))
    assert until_exits(engine)[-1] == Exited("p", -9)


def test_what_cannot_be_run_is_a_failure(engine: Engine) -> None:
    """Said at once, or by an exit code where only the other machine can know."""
    try:
        engine.start(python("", command=("/no/such/program",)))
    except UsageError:
        return
    [exited] = [one for one in until_exits(engine) if isinstance(one, Exited)]
    assert exited.code > 0


def test_a_process_leads_a_session_and_inherits_no_open_file(engine: Engine) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    code = f"""
import os
try: os.fstat({writer})
except OSError: print("closed")
print(os.getsid(0) == os.getpid() == os.getpgid(0), repr(os.read(0, 1)))
"""
    engine.start(python(code))
    assert printed(until_exits(engine)) == b"closed\nTrue b''\n"
    os.close(reader)
    os.close(writer)


def test_what_is_sent_is_a_process_s_input_up_to_its_end(engine: Engine) -> None:
    code = "import sys; print('up', flush=True); print(len(sys.stdin.buffer.read()))"
    engine.start(python(code, takes_input=True))
    until_printed(engine, "p")
    engine.send("p", b"x" * 100_000)
    assert printed(until_exits(engine)) == b"100000\n"
    engine.send("p", b"it has ended")


def test_a_private_file_is_where_its_variable_says(roomy_engine: Engine, place: EnginePlace) -> None:
    token = place.hidden / "token"
    token.touch(mode=0o600)
    token.write_bytes(b"secret")
    code = """
import os
path = os.environ["TOKEN"]
print(open(path).read(), oct(os.stat(path).st_mode & 0o777), flush=True)
"""
    for name in ("a", "b"):
        roomy_engine.start(python(code, name=name, files=(BroughtFile(token, "TOKEN"),)))
    happened = until_exits(roomy_engine, 2)
    assert [printed(happened, name) for name in ("a", "b")] == [b"secret 0o600\n"] * 2
    assert token.exists(), "it is the launcher's to remove"


def test_a_signal_reaches_the_processes_that_are_named(roomy_engine: Engine) -> None:
    code = f"""
import time
try:
    print("up", flush=True)
    {PATIENT}
except KeyboardInterrupt:
    print("stopped")
"""
    for name in ("a", "b", "c"):
        roomy_engine.start(python(code, name=name))
    until_printed(roomy_engine, "a", "b", "c")
    roomy_engine.send_signal({"a", "b"}, signal.SIGINT)
    happened = until_exits(roomy_engine, 2)
    assert {one for one in happened if isinstance(one, Exited)} == {Exited("a", 0), Exited("b", 0)}
    roomy_engine.send_signal({"a", "c"}, signal.SIGKILL)  # one of them has ended
    assert until_exits(roomy_engine)[-1] == Exited("c", -9)


CHILD = """
import os, time
if os.fork() == 0:
    os.execlp("sleep", "sleep", "1000.{mark}")
print("up", flush=True)
"""


def marked(mark: str) -> list[psutil.Process]:
    """Processes with these digits in their command lines, whatever their numbers are on the machine where they run."""
    return [process for process in psutil.process_iter() if mark in " ".join(command_of(process))]


def until_marked(mark: str, count: int) -> None:
    """A process that just becomes another program has no command line for a moment."""
    limit = time.monotonic() + PATIENCE
    while len(found := marked(mark)) < count:
        assert time.monotonic() < limit, found
        time.sleep(0.01)


def until_gone(processes: list[psutil.Process], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while alive := [process for process in processes if not _is_gone(process)]:
        assert time.monotonic() < limit, [command_of(process) for process in alive]
        time.sleep(0.05)


def _is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("end", ["", "time.sleep(1000)"], ids=["ends", "closed"])
def test_what_a_process_started_ends_with_it(engine: Engine, end: str) -> None:
    mark = f"{secrets.randbelow(10**15):015}"
    engine.start(python(CHILD.format(mark=mark) + end))
    if end:
        until_printed(engine, "p")
        until_marked(mark, 2)
        engine.close()
        engine.close()
    else:
        assert printed(until_exits(engine)) == b"up\n"
    until_gone(marked(mark), PATIENCE)


LAUNCHER = """
import select, sys
sys.path[:0] = {path!r}
from support.engine_places import *
from support.engines import python
engine = {engine}
engine.start(python({code!r}))
while True:
    select.select([engine], [], [])
    for happened in engine.poll():
        print(happened, flush=True)
"""


def test_nothing_outlives_a_launcher_that_is_killed(place: EnginePlace, tmp_path: Path) -> None:
    """Its processes, their children, the agents and programs that started them: all are gone within seconds."""
    mark = f"{secrets.randbelow(10**15):015}"
    program = LAUNCHER.format(path=sys.path, engine=place.program, code=CHILD.format(mark=mark) + "time.sleep(1000)")
    command = [*place.entered, sys.executable, "-c", program]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}  # what a killed launcher leaves there goes with the test
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as launcher:
        assert launcher.stdout is not None
        said = ""
        while "b'up" not in (line := launcher.stdout.readline()):
            assert line, said
            said += line
        until_marked(mark, 3)  # these two, and the launcher
        started = [process for process in marked(mark) if process.pid != launcher.pid]
        assert len(started) == 2, started
        agents = [parent for process in started for parent in process.parents() if is_ours(parent)]
        helpers = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    limit = time.monotonic() + END_SECONDS
    until_gone([*started, *agents, *helpers], END_SECONDS)
    while left := place.left():
        assert time.monotonic() < limit, left
        time.sleep(0.1)


def is_ours(process: psutil.Process) -> bool:
    return "shoal.engines.nodes.agent" in command_of(process)
