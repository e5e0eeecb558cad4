"""The interface of a provider, which gets agents running on machines: through ssh, a batch system, another cluster.

A provider starts `python -P -m shoal.engines.nodes.agent` on each node and writes one line to its standard input:
`errand_line`. The agent then connects to the launcher by itself. The provider keeps that input open: its end ends the
agent. One thread drives a provider. Not here: what agents do (`agent`), who runs where (`node_placement`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import msgspec

from shoal.bounds import Name, Ordinal
from shoal.values import Address

AGENT_HAS_NO_WAY = 3  # exit code of an agent that cannot reach the launcher
AGENT = ("-P", "-m", "shoal.engines.nodes.agent")  # what Python runs on a node


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told when it is started. Holds a secret: for a pipe, never for a command line or a variable."""

    address: Address  # of the launcher
    token: Name
    node: Name  # the node's name
    slots: Ordinal = 0  # 0: as many as the machine has GPUs, or cores if it has none
    is_warned: bool = False  # SIGTERM announces the end of all nodes: the launcher is told, and decides

    def __repr__(self) -> str:
        """Without the token: whatever runs an agent may log its arguments."""
        return f"Errand(address={self.address}, node={self.node!r}, slots={self.slots})"


@dataclass(frozen=True)
class WayIn:
    """How an agent reaches the launcher."""

    address: Address
    token: str = field(repr=False)

    def errand_line(self, node: str, slots: int = 0, *, is_warned: bool = False) -> bytes:
        errand = Errand(address=self.address, token=self.token, node=node, slots=slots, is_warned=is_warned)
        return msgspec.json.encode(errand) + b"\n"


@dataclass(frozen=True)
class NodeGone:
    """A node cannot be had, or its agent has ended."""

    node: str
    reason: str  # if it was never there: what is wrong, and what to do
    lost: str = ""  # if it was there: follows "node b is gone: "; empty: `reason` does


class Provider(ABC):
    @abstractmethod
    def open(self, way_in: WayIn) -> tuple[str, ...]:
        """Begin to start agents, and return the names of their nodes. Further nodes may come at any time.

        No names: they are unknown until agents connect, or any agents will do.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to return."""

    @abstractmethod
    def poll(self) -> tuple[NodeGone, ...]:
        """What happened since the last call. Never blocks."""

    def came(self, node: str) -> None:  # noqa: B027  most need not know
        """The agent of this node has connected, so that the next one may be started where few are at once."""

    @abstractmethod
    def close(self) -> None:
        """End what starts and carries the agents, and release every resource. Safe to call twice."""
