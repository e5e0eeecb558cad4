"""The launcher's connections to agents: many messages to a slow agent, no descriptors, agents that misbehave."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from shoal.engines import equipment
from shoal.engines.nodes.agent_line import PURPOSE, AgentLine
from shoal.engines.nodes.agent_lines import MOST_UNSENT, AgentLines, AgentLost, AgentSaid, LineNews
from shoal.engines.nodes.agent_messages import FilePiece, Hello, LauncherMessage, decode_launchers
from shoal.engines.waiting import wait_for
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
from shoal.values import Address
from support.engines import PATIENCE

HELLO = Hello(node="a", host="here", versions=equipment.own_versions(), slots=1)


@pytest.fixture
def lines() -> Iterator[AgentLines]:
    with contextlib.closing(AgentLines(Address("127.0.0.1", 0))) as made:
        yield made


def until(lines: AgentLines, is_enough: Callable[[list[LineNews]], bool]) -> list[LineNews]:
    news: list[LineNews] = []
    limit = time.monotonic() + PATIENCE
    while not is_enough(news):
        assert time.monotonic() < limit, news
        wait_for([lines], 0.1)
        news += lines.poll()
    return news


@contextlib.contextmanager
def agent_of(lines: AgentLines) -> Iterator[AgentLine[LauncherMessage]]:
    """An agent that has said hello; it is number 0 of `lines`."""
    found: list[AgentLine[LauncherMessage]] = []

    def come() -> None:
        key = Key(PURPOSE, lines.token)
        found.append(AgentLine(connect(Address("127.0.0.1", lines.port), key, PATIENCE).endpoint, decode_launchers))
        found[0].send(HELLO)

    thread = threading.Thread(target=come)
    thread.start()
    try:
        assert until(lines, bool) == [AgentSaid(0, HELLO)]
        thread.join()
        yield found[0]
    finally:
        thread.join()
        found[0].close()


def test_messages_of_a_long_row_are_made_as_the_agent_takes_them(lines: AgentLines) -> None:
    """What is not taken yet must not lie in the launcher's memory: there may be many agents."""
    made = []
    pieces = [FilePiece(path=str(number), data=os.urandom(MOST_UNSENT), is_last=True) for number in range(64)]

    def row() -> Iterator[FilePiece]:
        for piece in pieces:
            made.append(piece)
            yield piece

    with agent_of(lines) as agent:
        lines.send_row(0, row())
        for _ in range(20):  # the agent reads nothing meanwhile
            wait_for([lines], 0.01)
            lines.poll()
        assert 0 < len(made) < 32
        heard: list[LauncherMessage] = []
        limit = time.monotonic() + PATIENCE
        while len(heard) < len(pieces):
            assert time.monotonic() < limit, len(heard)
            lines.poll()
            heard += agent.receive()
    assert heard == pieces


def test_a_row_ends_with_its_agent(lines: AgentLines) -> None:
    with agent_of(lines):
        lines.send_row(0, (FilePiece(path="a", data=bytes(MOST_UNSENT), is_last=False) for _ in range(10**9)))
    [lost] = until(lines, bool)
    assert isinstance(lost, AgentLost) and lost.agent == 0
    lines.send_row(0, iter([FilePiece(path="a", data=b"", is_last=True)]))  # nobody is there


def test_without_descriptors_the_launcher_waits_and_takes_agents_in_later(lines: AgentLines) -> None:
    """A connection that cannot be accepted keeps the listener readable: the launcher must not turn round it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", lines.port)):
        with socket.socket() as free:  # the lowest number that is free, and all below are in use
            resource.setrlimit(resource.RLIMIT_NOFILE, (free.fileno() + 1, hard))
            try:
                turns, end = 0, time.monotonic() + 1.0
                while time.monotonic() < end:
                    wait_for([lines], 0.5)
                    lines.poll()
                    turns += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert turns < 200
        with agent_of(lines):
            pass
