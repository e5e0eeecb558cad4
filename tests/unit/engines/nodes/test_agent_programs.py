"""Agents that a program per node starts: their words, their end, and a warning that all nodes are taken away."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from shoal.engines import texts
from shoal.engines.engine import Exited, MachineNotice, MachinesLeave
from shoal.engines.nodes import agent_programs
from shoal.engines.nodes.agent_programs import AgentProgram, AgentPrograms
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.nodes.provider import AGENT, NodeGone
from shoal.engines.waiting import wait_for
from shoal.errors import UsageError
from shoal.values import Address
from support.engines import PATIENCE, printed, python, until_exits, until_printed

PATIENT = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); input()"


def explained(node: str, code: int, lines: Sequence[str]) -> NodeGone:
    return NodeGone(node, f"{node} ended with {code}: {lines}")


@contextlib.contextmanager
def engine_of(*command: str, is_warned: bool = False) -> Iterator[NodeEngine]:
    program = AgentProgram("a", command, dict(os.environ), slots=2, is_warned=is_warned)
    with opened([program]) as engine:
        engine.gather(1)
        yield engine


def opened(programs: Sequence[AgentProgram]) -> contextlib.closing[NodeEngine]:
    config = NodeEngineConfig(Address("127.0.0.1", 0))
    return contextlib.closing(NodeEngine(config, AgentPrograms(programs, explained)))


def programs(count: int, *command: str) -> list[AgentProgram]:
    return [AgentProgram(f"node{number}", command, dict(os.environ), slots=1) for number in range(count)]


def agent_below() -> psutil.Process:
    [agent] = [one for one in psutil.Process().children(recursive=True) if list(AGENT) == one.cmdline()[1:]]
    return agent


def notices(engine: NodeEngine, count: int) -> list[str]:
    """So many notices, at least, in the order in which they came."""
    told: list[str] = []
    limit = time.monotonic() + PATIENCE
    while len(told) < count:
        assert time.monotonic() < limit, told
        wait_for([engine], 0.2)
        told += [one.text for one in engine.poll() if isinstance(one, MachineNotice)]
    return told


def test_a_program_that_starts_no_agent_is_explained_by_its_code_and_words() -> None:
    words = "import sys; print('no such'); print('machine', file=sys.stderr); sys.exit(7)"
    with pytest.raises(UsageError) as raised, engine_of(sys.executable, "-u", "-c", words):
        pass
    assert str(raised.value) == "a ended with 7: ('no such', 'machine')"


def test_a_warned_agent_tells_the_launcher_and_its_processes_go_on() -> None:
    with engine_of(sys.executable, *AGENT, is_warned=True) as engine:
        engine.start(python(PATIENT, name="p", takes_input=True))
        until_printed(engine, "p")
        [agent] = [one for one in psutil.Process().children() if AGENT[-1] in one.cmdline()]
        agent.send_signal(signal.SIGTERM)
        happened = []
        while not any(isinstance(one, MachinesLeave) for one in happened):
            happened += engine.poll()
        assert MachinesLeave(texts.nodes_leave("a")) in happened
        engine.send("p", b"\n")
        ended = until_exits(engine)
        assert Exited("p", 0) in ended, printed(ended, "p")


def test_an_agent_that_is_not_warned_ends_with_all_its_processes() -> None:
    with engine_of(sys.executable, *AGENT) as engine:
        engine.start(python(PATIENT, name="p", takes_input=True))
        until_printed(engine, "p")
        [agent] = [one for one in psutil.Process().children() if AGENT[-1] in one.cmdline()]
        agent.send_signal(signal.SIGTERM)
        [exited] = [one for one in until_exits(engine) if isinstance(one, Exited)]
        assert exited.code == -signal.SIGKILL


# Runs an agent if the file is not there, and says why it ends a moment later than the agent's connection closes.
SHELL = """
file=$1; shift
[ -e "$file" ] && echo "no way there" && exit 9
"$@"
sleep 0.3; echo "it burns"; exit 7
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost node is tried again soon."""
    monkeypatch.setattr(agent_programs, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(agent_programs, "LONGEST_PAUSE", 0.2)


@pytest.mark.usefixtures("quick")
def test_why_a_node_was_lost_is_told_after_its_connection_closed_and_failed_tries_once(tmp_path: Path) -> None:
    with engine_of("sh", "-c", SHELL, "sh", str(tmp_path / "cut"), sys.executable, *AGENT) as engine:
        (tmp_path / "cut").touch()
        agent_below().kill()
        told = notices(engine, 3)
        assert told[0] == texts.node_gone("a", texts.AGENT_CLOSED)
        assert told[1].startswith("node a is gone: a ended with 7:") and "it burns" in told[1]
        assert told[2] == "a ended with 9: ('no way there',)"
        limit = time.monotonic() + 2.0  # several tries
        while time.monotonic() < limit:
            wait_for([engine], 0.1)
            assert not engine.poll()
        (tmp_path / "cut").unlink()
        assert notices(engine, 1) == [texts.node_came("a", 2)]
        engine.start(python("print(1)", name="p"))
        assert printed(until_exits(engine), "p") == b"1\n"


# An agent that says hello and no more.
SHORT = """
import sys, time
from shoal.engines import equipment
from shoal.engines.nodes.agent import read_errand
from shoal.engines.nodes.agent_line import PURPOSE, AgentLine
from shoal.engines.nodes.agent_messages import Hello, decode_launchers
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
errand = read_errand()
link = AgentLine(connect(errand.address, Key(PURPOSE, errand.token), 20.0).endpoint, decode_launchers)
versions = equipment.own_versions()
for node in (errand.node, "another"):
    link.send(Hello(node=node, host="here", versions=versions, slots=1))
link.close()
time.sleep(0.5)
sys.exit("it burns")
"""


def test_a_job_that_cannot_start_says_why_in_the_words_of_the_program() -> None:
    with pytest.raises(UsageError) as raised, engine_of(sys.executable, "-c", SHORT):
        pass
    assert str(raised.value) == "node a is gone: a ended with 1: ('it burns',)"


# Many nodes


def test_few_programs_connect_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is started when an agent has connected."""
    monkeypatch.setattr(agent_programs, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(agent_programs, "STARTING_SECONDS", 10 * PATIENCE)
    with opened(programs(3, sys.executable, *AGENT)) as engine:
        assert len(psutil.Process().children()) == 1
        engine.gather(3)
        assert len(psutil.Process().children()) == 3


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 0.0), (32, 0.0), (33, 10.0), (1000, 310.0)])
def test_a_job_waits_longer_for_many_nodes_since_few_start_at_once(nodes: int, seconds: float) -> None:
    assert agent_programs.seconds_to_start(nodes) == seconds


def test_programs_whose_agents_do_not_connect_hold_up_the_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_programs, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(agent_programs, "STARTING_SECONDS", 0.3)
    with opened(programs(5, "sleep", "1000")) as engine:
        assert len(psutil.Process().children()) == 2
        limit = time.monotonic() + PATIENCE
        while len(psutil.Process().children()) < 5:
            assert time.monotonic() < limit
            wait_for([engine], 0.1)
            engine.poll()


@pytest.mark.usefixtures("quick")
def test_a_program_that_cannot_be_started_is_named_and_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    trouble = texts.program_not_started("a", str(program), "No such file or directory")
    with pytest.raises(UsageError) as raised, engine_of(str(program), *AGENT):
        pass
    assert str(raised.value) == trouble

    def write() -> None:
        (tmp_path / "new").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").rename(program)

    write()
    with engine_of(str(program), *AGENT) as engine:
        program.unlink()
        agent_below().kill()
        while trouble not in notices(engine, 1):
            pass
        write()
        assert notices(engine, 1) == [texts.node_came("a", 2)]
