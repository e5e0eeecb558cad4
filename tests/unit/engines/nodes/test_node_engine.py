"""An engine over nodes: those that come late or go, scripts that travel, and nodes that cannot be used. Real agents."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines import equipment, texts
from shoal.engines.engine import BroughtFile, Engine, Exited, Happening, MachineNotice, NoMachines, Placed, ProcessSpec
from shoal.engines.nodes.agent_messages import Versions
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.nodes.provider import WayIn
from shoal.engines.nodes.script_files import NodeFolder
from shoal.entry.spare import Order, encode_order
from shoal.environment import spare_variables
from shoal.errors import AddressUnavailable, UsageError
from shoal.values import Address
from support.engines import PATIENCE, printed, python, until_exits, until_printed
from support.network import Network
from support.nodes import Folders, NodesHere, TestNode, open_nodes

FOREVER = "import time; print('up', flush=True); time.sleep(1000)"


@contextlib.contextmanager
def nodes(*, workers: int = 1, **given: object) -> Iterator[tuple[NodeEngine, NodesHere]]:
    engine, provider = open_nodes(**given)  # type: ignore[arg-type]  of several types
    with contextlib.closing(engine):
        engine.gather(workers)
        yield engine, provider


def until(engine: Engine, wanted: type[Happening]) -> list[Happening]:
    happened: list[Happening] = []
    limit = time.monotonic() + PATIENCE
    while not any(isinstance(one, wanted) for one in happened):
        assert time.monotonic() < limit, happened
        select.select([engine], [], [], 1.0)
        happened += engine.poll()
    return happened


def test_a_process_knows_its_node_and_its_place_there_and_the_launcher_hears_why() -> None:
    code = "import os; print(*(os.environ[name] for name in ('SHOAL_NODE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')))"
    with nodes(nodes={"a": TestNode(slots=2), "b": TestNode(slots=2)}) as (engine, _):
        for name in ("worker 0", "worker 1", "worker 2"):
            engine.start(python(code, name=name, variables={"LOCAL_RANK": "7"}))
        happened = until_exits(engine, 3)
    assert [printed(happened, f"worker {number}") for number in range(3)] == [b"a 0 2\n", b"b 0 2\n", b"a 1 2\n"]
    placed = [one for one in happened if isinstance(one, Placed)]
    assert [one.node for one in placed] == ["a", "b", "a"]
    assert all(one.reason and one.host == socket.gethostname() for one in placed)


def test_the_processes_of_a_node_that_is_gone_count_as_killed_and_the_next_start_goes_elsewhere() -> None:
    with nodes(nodes={"a": TestNode(), "b": TestNode()}) as (engine, provider):
        engine.start(python(FOREVER, name="p"))
        until_printed(engine, "p")
        pids = [child.pid for child in psutil.Process(provider.agents["a"].pid).children(recursive=True)]
        provider.agents["a"].kill()
        happened = until_exits(engine)
        [exited] = [one for one in happened if isinstance(one, Exited)]
        assert (exited.code, exited.reason.partition(":")[0]) == (-9, "its node a is gone")
        assert any(isinstance(one, MachineNotice) and "node a is gone" in one.text for one in happened)
        engine.start(python(FOREVER, name="q"))
        [placed] = [one for one in until(engine, Placed) if isinstance(one, Placed)]
        assert placed.node == "b"
        _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], PATIENCE)
        assert not alive


def test_a_process_without_a_place_waits_for_a_node_that_comes_later() -> None:
    with nodes(nodes={"a": TestNode(slots=1)}) as (engine, provider):
        engine.start(python(FOREVER, name="p"))
        engine.start(python("print(input())", name="q", takes_input=True))
        engine.send("q", b"sent while it waited\n")
        told = [one.text for one in until(engine, MachineNotice) if isinstance(one, MachineNotice)]
        assert told == [texts.process_waits("q", "all 1 slots of the only node are in use")]
        provider.add("b", TestNode())
        assert printed(until_exits(engine), "q") == b"sent while it waited\n"


def test_a_signal_ends_the_wait_of_a_process() -> None:
    with nodes(nodes={"a": TestNode(slots=1)}) as (engine, _):
        engine.start(python(FOREVER, name="p"))
        engine.start(python("", name="q"))
        engine.send_signal({"q"}, signal.SIGTERM)
        assert Exited("q", -15) in until_exits(engine)


def test_a_long_time_without_any_node_is_an_error() -> None:
    with nodes(nodes={"a": TestNode()}, patience=0.1) as (engine, provider):
        provider.agents["a"].kill()
        until(engine, MachineNotice)
        engine.start(python("", name="p"))
        assert NoMachines(texts.no_nodes_left(0.1)) in until(engine, NoMachines)


def test_an_agent_that_is_stopped_does_not_hold_up_the_end() -> None:
    with nodes(nodes={"a": TestNode(slots=2)}) as (engine, provider):
        for name in ("p", "q"):
            engine.start(python(FOREVER, name=name))
            until_printed(engine, name)
        provider.agents["a"].send_signal(signal.SIGSTOP)
        engine._killed |= {"p": 0.0, "q": 0.0}  # their time is up
        exits = [one for one in until_exits(engine, 2) if isinstance(one, Exited)]
        reason = texts.its_node_is_gone("a", texts.NO_ANSWER)
        assert sorted(exits, key=lambda one: one.name) == [Exited("p", -9, reason), Exited("q", -9, reason)]
        provider.agents["a"].kill()


def test_too_few_slots_are_an_error_with_both_numbers() -> None:
    with pytest.raises(UsageError) as raised, nodes(workers=5, nodes={"a": TestNode(2), "b": TestNode(2)}):
        pass
    assert str(raised.value) == texts.too_few_slots(5, 4, 2)


class NodesUnnamed(NodesHere):
    """Nobody knows their names before they come."""

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        super().open(way_in)
        return ()


@contextlib.contextmanager
def unnamed(**slots: int) -> Iterator[NodeEngine]:
    provider = NodesUnnamed({name: TestNode(slots=count) for name, count in slots.items()})
    config = NodeEngineConfig(Address("127.0.0.1", 0), more_room="add some")
    with contextlib.closing(NodeEngine(config, provider)) as engine:
        yield engine


def test_nodes_without_names_are_waited_for_until_all_workers_have_a_slot() -> None:
    with unnamed(a=1, b=1) as engine:
        engine.gather(2)
        engine.start(python("print(1)", name="p"))
        assert printed(until_exits(engine), "p") == b"1\n"


def test_too_few_nodes_without_names_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(UsageError) as raised, unnamed(a=1) as engine:
        engine.gather(1)
        engine.gather(2, seconds=0.0)
    assert str(raised.value) == texts.too_few_came(2, 1, 0.0, "add some")
    assert "within 0 s 1 came; take -n 1, or add some" in str(raised.value)


def test_what_processes_were_brought_is_gone_when_they_have_ended_and_everything_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "token").write_text("secret")
    node = TestNode(variables={"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    code = "import os; print(os.environ['TOKEN'], open(os.environ['TOKEN']).read())"
    with nodes(nodes={"a": node}) as (engine, provider):
        engine.start(python(code, files=(BroughtFile(tmp_path / "token", "TOKEN"),)))
        path, text = printed(until_exits(engine)).decode().split()
        assert text == "secret"
        assert Path(path).is_relative_to(tmp_path / "runtime")
        assert not Path(path).exists()
        engine.start(python(FOREVER, name="q", files=(BroughtFile(tmp_path / "token", "TOKEN"),)))
        until_printed(engine, "q")
        assert list((tmp_path / "runtime").rglob("*"))
        provider.agents["a"].kill()
        limit = time.monotonic() + PATIENCE
        while list((tmp_path / "runtime").iterdir()):
            assert time.monotonic() < limit, "the guardian of a killed agent removes its files"
            time.sleep(0.05)


def test_a_provider_is_closed_if_nobody_can_listen_for_its_agents() -> None:
    """It may hold an allocation, or a whole program."""

    class Held(NodesHere):
        is_closed = False

        def close(self) -> None:
            super().close()
            self.is_closed = True

    provider = Held({})
    with pytest.raises(AddressUnavailable):
        NodeEngine(NodeEngineConfig(Address("203.0.113.1", 0)), provider)
    assert provider.is_closed


# The script


def script(path: Path) -> ProcessSpec:
    command = (sys.executable, str(path), "one")
    return ProcessSpec(name="p", command=command, variables={}, script=str(path))


SCRIPT = "import os, sys, parts.model; print(os.getcwd(), sys.argv[0], sys.argv[1], parts.model.SIZE)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/parts").mkdir(parents=True)
    (tmp_path / "project/train.py").write_text(SCRIPT)
    (tmp_path / "project/parts/model.py").write_text("SIZE = 3\n" + "#" * 3_000_000)  # several pieces
    return tmp_path / "project/train.py"


def ran(engine: Engine, path: Path) -> list[str]:
    engine.start(script(path))
    happened = until_exits(engine)
    assert Exited("p", 0) in happened, printed(happened)
    return printed(happened).decode().split()


def test_a_script_that_is_the_same_on_the_node_runs_where_it_is(project: Path) -> None:
    with nodes(nodes={"a": TestNode()}, folders=Folders(project)) as (engine, _):
        assert ran(engine, project) == [str(Path.cwd()), str(project), "one", "3"]


@pytest.mark.parametrize("there", ["missing", "differs", "has more"])
def test_a_script_that_is_missing_or_differs_travels_and_runs_in_its_copy(project: Path, there: str) -> None:
    elsewhere = project.parent.parent / "there"
    if there != "missing":
        (elsewhere / "parts").mkdir(parents=True)
        (elsewhere / "parts/model.py").write_bytes((project.parent / "parts/model.py").read_bytes())
        (elsewhere / "train.py").write_text("raise SystemExit(3)" if there == "differs" else SCRIPT)
    if there == "has more":
        (elsewhere / "os.py").write_text("raise SystemExit(4)")
    folders = Folders(project, {"a": NodeFolder(str(elsewhere))})
    with nodes(nodes={"a": TestNode()}, folders=folders) as (engine, _):
        working, path, *rest = ran(engine, project)
        assert rest == ["one", "3"]
        assert path == f"{working}/train.py"
        assert Path(working).name == "script"
        assert Path(working).stat().st_mode & 0o777 == 0o700
    assert not Path(working).exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_shared_folder_that_differs_is_an_error_which_names_the_files(project: Path, is_there: bool) -> None:
    elsewhere = project.parent.parent / "there"
    if is_there:
        elsewhere.mkdir()
        (elsewhere / "train.py").write_text("old")
    folders = Folders(project, {"a": NodeFolder(str(elsewhere), is_shared=True)})
    with pytest.raises(UsageError) as raised, nodes(nodes={"a": TestNode()}, folders=folders):
        pass
    differs = texts.shared_folder_differs("a", str(elsewhere), ["parts/model.py", "train.py"])
    assert str(raised.value) == (differs if is_there else texts.shared_folder_missing("a", str(elsewhere)))


@pytest.mark.parametrize("is_shared", [True, False])
def test_nodes_that_do_not_see_a_file_of_this_machine_are_known(project: Path, is_shared: bool) -> None:
    probe = project if is_shared else project.with_name("elsewhere")
    with nodes(nodes={"a": TestNode(), "b": TestNode()}, folders=Folders(project, probe=str(probe))) as (engine, _):
        assert sorted(engine.blind) == ([] if is_shared else ["a", "b"])


# Versions


OWN = Versions("3.11.4", "2.13.0+cpu", "0.1.0")


@pytest.mark.parametrize(
    ("there", "trouble"),
    [
        (OWN, ""),
        (Versions("3.11.9", OWN.torch, OWN.shoal), ""),
        (Versions(OWN.python, "2.13.0+cu128", OWN.shoal), ""),
        (Versions(OWN.python, "2.13.0", OWN.shoal), ""),
        (Versions("3.12.1", OWN.torch, OWN.shoal), texts.versions_differ("Python", "a", "3.12", "3.11")),
        (Versions(OWN.python, "2.12.0", OWN.shoal), texts.versions_differ("torch", "a", "2.12.0", "2.13.0")),
        (
            Versions(OWN.python, "2.12.0+cpu", OWN.shoal),
            texts.versions_differ("torch", "a", "2.12.0", "2.13.0"),
        ),
        (Versions(OWN.python, OWN.torch, "0.0.9"), texts.versions_differ("Shoal", "a", "0.0.9", "0.1.0")),
        (Versions(OWN.python, "", OWN.shoal), texts.no_torch("a", "2.13.0")),
    ],
)
def test_other_versions_are_named_on_both_sides_with_a_cure(there: Versions, trouble: str) -> None:
    assert equipment.difference(OWN, there, "a") == trouble


def test_a_node_with_another_version_is_refused_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equipment, "own_versions", lambda: Versions("3.11.4", "9.9", "9.9"))
    told = r"node a has torch .*, this machine 9\.9; install the same version"
    with pytest.raises(UsageError, match=told), nodes(nodes={"a": TestNode()}):
        pass


# Strangers


def test_whoever_has_not_the_token_is_not_taken_in() -> None:
    with (
        nodes(nodes={"a": TestNode()}) as (engine, _),
        socket.create_connection(("127.0.0.1", engine._lines.port)) as stranger,
    ):
        stranger.sendall(os.urandom(200))
        engine.start(python("print(1)"))
        assert printed(until_exits(engine)) == b"1\n"
        stranger.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


# Cut links


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_cut_link_is_noticed_at_both_ends() -> None:
    """Nobody closes anything: packets vanish. The node counts as gone here, and its agent ends its processes there."""
    with Network(2) as network:
        with network.inside(0):
            engine, provider = open_nodes({"a": TestNode(namespace=network.namespaces[1])}, host=network.host(0))
        with contextlib.closing(engine):
            engine.gather(1)
            engine.start(python(FOREVER, name="p"))
            until_printed(engine, "p")
            agent = psutil.Process(provider.agents["a"].pid)
            there = agent.children(recursive=True)
            assert there
            network.unplug(1)
            [exited] = [one for one in until_exits(engine) if isinstance(one, Exited)]
            assert (exited.code, exited.reason.partition(":")[0]) == (-9, "its node a is gone")
            _, alive = psutil.wait_procs(there, PATIENCE)
            assert not alive
            assert provider.agents["a"].wait(PATIENCE) == 0


@pytest.mark.long
def test_a_spare_becomes_a_worker_whose_script_has_travelled(project: Path) -> None:
    folders = Folders(project, {"a": NodeFolder("/nowhere")})
    with nodes(nodes={"a": TestNode()}, folders=folders) as (engine, _):
        command = (sys.executable, "-P", "-m", "shoal.entry.spare")
        engine.start(ProcessSpec(name="p", command=command, variables=spare_variables(1), takes_input=True))
        until_printed(engine, "p")
        engine.send("p", encode_order(Order(script=str(project), arguments=("one",), variables={})))
        happened = until_exits(engine)
    assert Exited("p", 0) in happened, printed(happened)
    working, path, *rest = printed(happened).decode().split()
    assert rest == ["one", "3"]
    assert path == f"{working}/train.py"
