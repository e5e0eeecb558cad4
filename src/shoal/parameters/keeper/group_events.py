"""Events of a server group, which its keeper reports to the process that started it. Frozen; no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.values import Server, ServerMap


@dataclass(frozen=True)
class GroupServerJoined:
    server: Server


@dataclass(frozen=True)
class GroupServerLost:
    """A server died, went silent, or is cut off. Its number is never used again."""

    number: int
    reason: str
    is_silent: bool = False  # the server may hang or be stopped: its process will not end by itself


@dataclass(frozen=True)
class ServerRemoved:
    """A server left on request and its blocks have moved: its process ends by itself and needs no replacement."""

    number: int


@dataclass(frozen=True)
class MapMade:
    """A new version of the map. A settled one ends the moves that earlier versions began."""

    map: ServerMap
    seconds: float  # since the change that made the last settled map invalid; 0.0 for the first map
    size: int  # bytes that servers have fetched from each other since then; known once the map is settled


@dataclass(frozen=True)
class BlocksLost:
    """A server should hold blocks that no living server has: they have to come from a checkpoint."""

    number: int
    job: str
    blocks: int
    size: int  # bytes
    version: int = 0  # of the map; under the next version, the servers that should hold these blocks report them again


@dataclass(frozen=True)
class SpaceEnded:
    """The servers could not go on with a job; other jobs are not concerned."""

    job: str
    reason: str


@dataclass(frozen=True)
class InterceptionSeen:
    """A listener of the group has refused a connection that a third party on the path decrypts."""

    source: str  # host that the connection came from
    number: int | None  # of the server that listened; None: the keeper


@dataclass(frozen=True)
class MoreWanted:
    """An administrator asks for more servers."""

    count: int


@dataclass(frozen=True)
class StopWanted:
    """An administrator asks for the end of the group."""


GroupEvent = (
    GroupServerJoined | GroupServerLost | ServerRemoved | MapMade | BlocksLost | SpaceEnded
    | InterceptionSeen | MoreWanted | StopWanted
)  # fmt: skip
