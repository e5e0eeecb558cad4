"""What every engine must do, wherever it starts its processes: real ones, on this machine and in namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import BroughtFile, Engine, Exited
from shoal.engines.local import LocalEngine
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.ray.held_room import HeldRoom
from shoal.engines.ray.ray_provider import RayProvider
from shoal.engines.ray.room_messages import RoomWish
from shoal.errors import UsageError
from shoal.values import Address
from support.engines import PATIENCE, PATIENT, printed, python, until_exits, until_printed
from support.namespace_engine import NamespaceEngine, NamespaceEngineConfig
from support.network import Network
from support.nodes import TestNode, gathered
from support.ray_cluster import RayCluster, is_installed, ray_cluster

HIDDEN = "hidden"  # a folder of the launcher's machine that is on no other machine


NAMESPACES = pytest.param(
    "namespaces", marks=pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
)


NODES_ELSEWHERE = pytest.param(
    "nodes in namespaces", marks=pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
)


RAY = pytest.param(
    "ray", marks=[pytest.mark.long, pytest.mark.skipif(not is_installed(), reason="needs the package ray")]
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2, 2) as made:
        yield made


@pytest.fixture(params=["local", NAMESPACES, "nodes", NODES_ELSEWHERE, RAY])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    before = {process.pid for process in psutil.Process().children()}
    (tmp_path / HIDDEN).mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "local":
            yield stack.enter_context(contextlib.closing(LocalEngine()))
        elif request.param == "nodes":
            yield stack.enter_context(contextlib.closing(gathered([TestNode(), TestNode()])))
        elif request.param == "ray":
            made: RayCluster = request.getfixturevalue("cluster")
            held = HeldRoom(RoomWish(cluster=made.address, bundle={"CPU": 1.0}, fewest=4, most=4, wait=PATIENCE))
            held.wait()
            over = NodeEngine(NodeEngineConfig(Address("127.0.0.1", 0)), RayProvider(held, 4))
            yield stack.enter_context(contextlib.closing(over))
        elif request.param == "nodes in namespaces":
            network = stack.enter_context(Network(3))
            hidden = (tmp_path / HIDDEN, Path("/dev/shm"))
            nodes = [TestNode(namespace=name, hidden=hidden) for name in network.namespaces[1:]]
            with network.inside(0):
                engine = gathered(nodes, network.host(0))
            yield stack.enter_context(contextlib.closing(engine))
        else:
            network = stack.enter_context(Network(2))
            config = NamespaceEngineConfig(network.namespaces, hidden=(tmp_path / HIDDEN,))
            yield stack.enter_context(contextlib.closing(NamespaceEngine(config)))
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


def test_a_private_file_is_where_its_variable_says(engine: Engine, tmp_path: Path) -> None:
    token = tmp_path / HIDDEN / "token"
    token.touch(mode=0o600)
    token.write_bytes(b"secret")
    code = """
import os
path = os.environ["TOKEN"]
print(open(path).read(), oct(os.stat(path).st_mode & 0o777), flush=True)
"""
    for name in ("a", "b"):
        engine.start(python(code, name=name, files=(BroughtFile(token, "TOKEN"),)))
    happened = until_exits(engine, 2)
    assert [printed(happened, name) for name in ("a", "b")] == [b"secret 0o600\n"] * 2
    assert token.exists(), "it is the launcher's to remove"


def test_a_signal_reaches_the_processes_that_are_named(engine: Engine) -> None:
    code = f"""
import time
try:
    print("up", flush=True)
    {PATIENT}
except KeyboardInterrupt:
    print("stopped")
"""
    for name in ("a", "b", "c"):
        engine.start(python(code, name=name))
    until_printed(engine, "a", "b", "c")
    engine.send_signal({"a", "b"}, signal.SIGINT)
    happened = until_exits(engine, 2)
    assert {one for one in happened if isinstance(one, Exited)} == {Exited("a", 0), Exited("b", 0)}
    engine.send_signal({"a", "c"}, signal.SIGKILL)  # one of them has ended
    assert until_exits(engine)[-1] == Exited("c", -9)


def _is_gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


WITH_CHILD = """
import os
pid = os.fork()
if pid == 0:
    os.execlp("sleep", "sleep", "1000")
print(pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "import time; time.sleep(1000)"], ids=["ends", "closed"])
def test_what_a_process_started_ends_with_it(engine: Engine, end: str) -> None:
    engine.start(python(WITH_CHILD + end))
    child = int(until_printed(engine, "p")["p"]) if end else int(printed(until_exits(engine)))
    if end:
        engine.close()
        engine.close()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.wait_procs([psutil.Process(child)], timeout=PATIENCE)
    assert _is_gone(child)


LAUNCHER = """
import select, sys
sys.path[:0] = {path!r}
from shoal.engines.engine import Printed
from shoal.engines.local import LocalEngine
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.ray.held_room import HeldRoom
from shoal.engines.ray.ray_provider import RayProvider
from shoal.engines.ray.room_messages import RoomWish
from shoal.errors import UsageError
from shoal.values import Address
from support.engines import python
from support.namespace_engine import NamespaceEngine, NamespaceEngineConfig
from support.nodes import TestNode, gathered
from support.ray_cluster import RayCluster, is_installed, ray_cluster
engine = {engine}
engine.start(python({code!r}))
while True:
    select.select([engine], [], [])
    for happened in engine.poll():
        if isinstance(happened, Printed):
            print(happened.data.decode(), end="", flush=True)
"""


@pytest.mark.parametrize("kind", ["local", NAMESPACES, "nodes"])
def test_nothing_outlives_a_launcher_that_is_killed(kind: str, tmp_path: Path) -> None:
    code = f"import os\nprint(os.getpid(), end=' ')\n{WITH_CHILD}import time; time.sleep(1000)"
    with contextlib.ExitStack() as stack:
        made = "gathered([TestNode(), TestNode()])" if kind == "nodes" else "LocalEngine()"
        if kind == "namespaces":
            made = f"NamespaceEngine(NamespaceEngineConfig({stack.enter_context(Network(1)).namespaces}))"
        program = LAUNCHER.format(path=sys.path, engine=made, code=code)
        variables = {**os.environ, "TMPDIR": str(tmp_path)}  # what a killed launcher leaves there goes with the test
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as launcher:
            assert launcher.stdout is not None
            started = [int(number) for number in launcher.stdout.readline().split()]
            launcher.kill()
        assert len(started) == 2
        for pid in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.wait_procs([psutil.Process(pid)], timeout=PATIENCE)
            assert _is_gone(pid)
