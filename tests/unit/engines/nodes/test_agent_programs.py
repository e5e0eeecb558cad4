"""Agents that a program per node starts: their words, their end, and a warning that all nodes are taken away."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

import psutil
import pytest

from shoal.engines import texts
from shoal.engines.engine import Exited, MachinesLeave
from shoal.engines.nodes.agent_programs import AgentProgram, AgentPrograms
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.nodes.provider import AGENT, NodeGone
from shoal.errors import UsageError
from shoal.values import Address
from support.engines import printed, python, until_exits, until_printed

PATIENT = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); input()"


def explained(node: str, code: int, lines: Sequence[str]) -> NodeGone:
    return NodeGone(node, f"{node} ended with {code}: {lines}")


@contextlib.contextmanager
def engine_of(*command: str, is_warned: bool = False) -> Iterator[NodeEngine]:
    program = AgentProgram("a", command, dict(os.environ), slots=2, is_warned=is_warned)
    with contextlib.closing(
        NodeEngine(NodeEngineConfig(Address("127.0.0.1", 0)), AgentPrograms([program], explained))
    ) as engine:
        engine.gather(1)
        yield engine


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
