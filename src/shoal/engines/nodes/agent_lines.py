"""The launcher's connections to its agents: a listening socket, proofs from strangers, messages in and out.

Never blocks. Not here: what messages mean (`node_engine`), the handshake and encryption (`transport.connection`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass

from shoal.engines.nodes.agent_link import PURPOSE, AgentLink
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


@dataclass(eq=False)
class _Stranger:
    """A connection up to its `Hello`."""

    met: Introduction
    link: AgentLink[AgentMessage] | None = None  # once it is proven


class AgentLines:
    def __init__(self, place: Address) -> None:
        """`OSError`: this process cannot listen there. Port 0: any free one."""
        self.token = new_token()
        self._listener = listen(place, BACKLOG)
        self._selector = selectors.EpollSelector()
        self._door: Door[_Stranger] = Door(self._listener, self._take_in, self._turn_out)
        self._door.prepare()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._links: dict[int, AgentLink[AgentMessage]] = {}
        self._count = 0
        self._lost: list[AgentLost] = []  # found in between
        self._looks_next = 0.0  # by time.monotonic

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> list[AgentSaid | AgentLost]:
        """What has come since the last call."""
        now = time.monotonic()
        self._door.sweep(now)
        if now >= self._looks_next:
            self._looks_next = now + LOOK_SECONDS
            self._look_alive()
        found: list[AgentSaid | AgentLost] = []
        for key, events in self._selector.select(0):
            if key.data is None:
                self._door.accept(now)
            elif isinstance(key.data, _Stranger):
                found += self._meet(key.data)
            elif key.data in self._links:
                found += self._serve(key.data, events)
        lost, self._lost = self._lost, []
        return [*found, *lost]

    def send(self, agent: int, message: NodeMessage) -> None:
        """Nothing is sent on a connection that is lost; `poll` says so."""
        if (link := self._links.get(agent)) is None:
            return
        try:
            link.send(message)
        except OSError as error:
            self._lose(agent, error.strerror or str(error))
        else:
            self._watch(agent, link)

    def drop(self, agent: int) -> None:
        """Close a connection. Nothing more is said of it."""
        if (link := self._links.pop(agent, None)) is not None:
            self._selector.unregister(link.fileno())
            link.close()

    def close(self) -> None:
        """Safe to call twice."""
        for agent in tuple(self._links):
            self.drop(agent)
        for stranger in self._door:
            self._turn_out(stranger)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._door.close()
        self._selector.close()

    # Strangers

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

    def _meet(self, stranger: _Stranger) -> list[AgentSaid | AgentLost]:
        """Go on with the proof, then wait for the first message."""
        try:
            if stranger.link is None:
                if not stranger.met.advance():
                    if stranger.met.was_refused:
                        self._turn_out(stranger)
                    return []
                stranger.link = AgentLink(stranger.met.welcome(), decode_agents)
            heard = stranger.link.receive()
        except (OSError, WireError, Untrusted):
            self._turn_out(stranger)
            return []
        if heard and not isinstance(heard[0], Hello):
            self._turn_out(stranger)
            return []
        return self._enter(stranger, heard) if heard else []

    def _enter(self, stranger: _Stranger, heard: list[AgentMessage]) -> list[AgentSaid | AgentLost]:
        assert stranger.link is not None
        self._door.settle(stranger)
        agent = self._count
        self._count += 1
        self._links[agent] = stranger.link
        self._selector.modify(stranger.link.fileno(), selectors.EVENT_READ, agent)
        return [AgentSaid(agent, message) for message in heard]

    # Agents

    def _serve(self, agent: int, events: int) -> list[AgentSaid | AgentLost]:
        link = self._links[agent]
        try:
            if events & selectors.EVENT_WRITE:
                link.push()
            heard = link.receive() if events & selectors.EVENT_READ else []
        except WireError as error:
            self._lose(agent, str(error))
            return []
        except ConnectionResetError:
            self._lose(agent, "")
            return []
        except OSError as error:
            self._lose(agent, error.strerror or str(error))
            return []
        self._watch(agent, link)
        return [AgentSaid(agent, message) for message in heard]

    def _look_alive(self) -> None:
        for agent, link in tuple(self._links.items()):
            try:
                link.look_alive()
            except OSError as error:
                self._lose(agent, error.strerror or str(error))

    def _watch(self, agent: int, link: AgentLink[AgentMessage]) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if self._selector.get_key(link.fileno()).events != events:
            self._selector.modify(link.fileno(), events, agent)

    def _lose(self, agent: int, reason: str) -> None:
        self.drop(agent)
        self._lost.append(AgentLost(agent, reason))
