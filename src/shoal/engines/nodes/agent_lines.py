"""The launcher's connections to its agents: a listening socket, proofs from strangers, messages in and out.

Never blocks. Not here: what messages mean (`node_engine`), the handshake and encryption (`transport.connection`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.engines.nodes.agent_line import PURPOSE, AgentLine
from shoal.engines.nodes.agent_messages import AgentMessage, Hello, NodeMessage, decode_agents
from shoal.errors import WireError
from shoal.transport.connection.door import Door
from shoal.transport.connection.handshake import ListenerHandshake, Untrusted
from shoal.transport.connection.introduction import Introduction
from shoal.transport.connection.listening import listen
from shoal.values import Address
from shoal.wire.token_file import new_token

BACKLOG = 256
LOOK_SECONDS = 1.0  # between two looks at which machines answer
MOST_UNSENT = 1024 * 1024  # bytes that wait for one agent before the next message of a long row is made


@dataclass(frozen=True)
class AgentSaid:
    """An agent's message. Its first one is `Hello`."""

    agent: int  # agents are numbered in the order of their connections
    message: AgentMessage


@dataclass(frozen=True)
class AgentLost:
    """The connection to an agent that has said hello is lost."""

    agent: int
    reason: str  # empty: the agent closed it


@dataclass(frozen=True)
class AgentIntercepted:
    """A connection was refused because somebody at this host decrypts it. Each host is told of once."""

    source: str


LineNews = AgentSaid | AgentLost | AgentIntercepted


@dataclass(eq=False)
class _Stranger:
    """A connection up to its `Hello`."""

    met: Introduction
    line: AgentLine[AgentMessage] | None = None  # once it is proven


class AgentLines:
    def __init__(self, place: Address) -> None:
        """`OSError`: this process cannot listen there. Port 0: any free one."""
        self.token = new_token()
        self._listener = listen(place, BACKLOG)
        self._selector = selectors.EpollSelector()
        self._door: Door[_Stranger] = Door(self._listener, self._take_in, self._turn_out)
        self._door.prepare()
        self._is_listening = False  # the selector watches the listener
        self._mind_door(time.monotonic())
        self._lines: dict[int, AgentLine[AgentMessage]] = {}
        self._rows: dict[int, Iterator[NodeMessage]] = {}  # by agent: messages that follow when it has taken the last
        self._count = 0
        self._news: list[LineNews] = []  # found in between
        self._looks_next = 0.0  # by time.monotonic

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> list[LineNews]:
        """What has come since the last call. Call it about once a second even if nothing is readable."""
        now = time.monotonic()
        self._door.sweep(now)
        self._mind_door(now)
        if now >= self._looks_next:
            self._looks_next = now + LOOK_SECONDS
            self._look_alive()
        found: list[LineNews] = []
        for key, events in self._selector.select(0):
            if key.data is None:
                self._door.accept(now)
                self._mind_door(now)
            elif isinstance(key.data, _Stranger):
                found += self._meet(key.data)
            elif key.data in self._lines:
                found += self._serve(key.data, events)
        news, self._news = self._news, []
        return [*found, *news]

    def send(self, agent: int, message: NodeMessage) -> None:
        """Nothing is sent on a connection that is lost; `poll` says so."""
        if (line := self._lines.get(agent)) is None:
            return
        try:
            line.send(message)
        except OSError as error:
            self._lose(agent, error.strerror or str(error))
        else:
            self._watch(agent, line)

    def send_row(self, agent: int, row: Iterator[NodeMessage]) -> None:
        """Send many messages, of which each is made when the agent has taken the ones before."""
        if agent in self._lines:
            self._rows[agent] = row
            self._go_on(agent)

    def drop(self, agent: int) -> None:
        """Close a connection. Nothing more is said of it."""
        self._rows.pop(agent, None)
        if (line := self._lines.pop(agent, None)) is not None:
            self._selector.unregister(line.fileno())
            line.close()

    def close(self) -> None:
        """Safe to call twice."""
        for agent in tuple(self._lines):
            self.drop(agent)
        for stranger in self._door:
            self._turn_out(stranger)
        if self._is_listening:
            self._selector.unregister(self._listener)
            self._is_listening = False
        self._door.close()
        self._selector.close()

    # Strangers

    def _mind_door(self, now: float) -> None:
        """Without a descriptor for one more connection, the listener would stay readable: do not watch it then."""
        is_wanted = self._door.fileno() >= 0 and not self._door.is_full(now)
        if is_wanted and not self._is_listening:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        elif self._is_listening and not is_wanted:
            self._selector.unregister(self._listener)
        self._is_listening = is_wanted

    def _take_in(self, connection: socket.socket) -> _Stranger:
        connection.setblocking(False)
        stranger = _Stranger(Introduction(connection, ListenerHandshake({PURPOSE: self.token}.get)))
        stranger.met.open()
        self._selector.register(stranger.met.endpoint.fileno(), selectors.EVENT_READ, stranger)
        return stranger

    def _turn_out(self, stranger: _Stranger) -> None:
        self._door.settle(stranger)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.met.endpoint.fileno())
        stranger.met.endpoint.close()

    def _meet(self, stranger: _Stranger) -> list[LineNews]:
        """Go on with the proof, then wait for the first message."""
        try:
            if stranger.line is None:
                if not stranger.met.advance():
                    if stranger.met.was_refused:
                        if self._door.is_news(stranger.met.interceptor):
                            self._news.append(AgentIntercepted(stranger.met.interceptor))
                        self._turn_out(stranger)
                    return []
                stranger.line = AgentLine(stranger.met.welcome(), decode_agents)
            heard = stranger.line.receive()
        except (OSError, WireError, Untrusted):
            self._turn_out(stranger)
            return []
        if heard and not isinstance(heard[0], Hello):
            self._turn_out(stranger)
            return []
        return self._enter(stranger, heard) if heard else []

    def _enter(self, stranger: _Stranger, heard: list[AgentMessage]) -> list[LineNews]:
        assert stranger.line is not None
        self._door.settle(stranger)
        agent = self._count
        self._count += 1
        self._lines[agent] = stranger.line
        self._selector.modify(stranger.line.fileno(), selectors.EVENT_READ, agent)
        return [AgentSaid(agent, message) for message in heard]

    # Agents

    def _serve(self, agent: int, events: int) -> list[LineNews]:
        line = self._lines[agent]
        try:
            if events & selectors.EVENT_WRITE:
                line.push()
            heard = line.receive() if events & selectors.EVENT_READ else []
        except WireError as error:
            self._lose(agent, str(error))
            return []
        except ConnectionResetError:
            self._lose(agent, "")
            return []
        except OSError as error:
            self._lose(agent, error.strerror or str(error))
            return []
        self._watch(agent, line)
        self._go_on(agent)
        return [AgentSaid(agent, message) for message in heard]

    def _go_on(self, agent: int) -> None:
        """Send of a row what the agent takes now."""
        while agent in self._rows and self._lines[agent].unsent < MOST_UNSENT:
            message = next(self._rows[agent], None)
            if message is None:
                del self._rows[agent]
            else:
                self.send(agent, message)

    def _look_alive(self) -> None:
        for agent, line in tuple(self._lines.items()):
            try:
                line.look_alive()
            except OSError as error:
                self._lose(agent, error.strerror or str(error))

    def _watch(self, agent: int, line: AgentLine[AgentMessage]) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
        if self._selector.get_key(line.fileno()).events != events:
            self._selector.modify(line.fileno(), events, agent)

    def _lose(self, agent: int, reason: str) -> None:
        self.drop(agent)
        self._news.append(AgentLost(agent, reason))
