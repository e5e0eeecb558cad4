"""The messages to and from the keeper of a server group: of servers, workers, launchers and administrators.

Not here: what workers and servers say to each other (`parameter_messages`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Members, Name, Ordinal, Size, Text, Total
from shoal.values import Address, ServerMap
from shoal.wire.derived_keys import MOST_SEALED, NONCE_BYTES, TAG_BYTES
from shoal.wire.note import Note


class ServerJoin(Note, frozen=True, tag="server-join"):
    version: Ordinal
    number: Ordinal  # that its process was started with
    address: Address
    host: Name
    process: Ordinal


class SpaceEnd(msgspec.Struct, frozen=True):
    """Why a group does nothing for a job any more: what its workers are refused with."""

    reason: Text
    kind: Name = "failed"  # as in `Refusal`


class SealedSpace(msgspec.Struct, frozen=True):
    """A job that may use the group, as it is told over a connection: `parameters.keeper.space_terms`."""

    job: Name
    key: Annotated[bytes, Meta(max_length=NONCE_BYTES + MOST_SEALED + TAG_BYTES)]  # sealed: see `derived_keys`
    quota: Size  # bytes of parameters and state over all servers; 0: no limit
    end: SpaceEnd | None = None  # None: the group serves it


class GroupNews(Note, frozen=True, tag="group-news"):
    """Keeper to all: the present map; to servers also the jobs that may use them. Also the answer to ServerJoin."""

    map: ServerMap | None  # None: the group is not complete yet
    spaces: Members[SealedSpace] = ()  # to servers only
    coming: Ordinal = 0  # to watchers only: servers that are being started and will probably join


class WatchGroup(Note, frozen=True, tag="watch-group"):
    """A worker or a launcher wants to hear of every new map."""

    version: Ordinal
    job: Name = ""


class Filled(Note, frozen=True, tag="filled"):
    """The sender holds every block of `after` that is its."""

    view: Ordinal
    size: Size = 0  # bytes that it has fetched for that


class Lost(Note, frozen=True, tag="lost"):
    """The sender should hold blocks that no living server has: a worker must assign them from a checkpoint."""

    view: Ordinal
    job: Name
    blocks: Ordinal
    size: Size  # bytes


class SpaceFailed(Note, frozen=True, tag="space-failed"):
    """The sender cannot go on with a job, and so nobody can: the keeper ends its space on all servers."""

    job: Name
    end: SpaceEnd


class Intercepted(Note, frozen=True, tag="intercepted"):
    """The sender has refused a connection that somebody in between decrypts."""

    source: Name  # host that it came from


class ServerFigures(msgspec.Struct, frozen=True):
    """Running totals of one server since it started."""

    bytes_in: Total = 0
    bytes_out: Total = 0
    requests: Total = 0
    updates: Total = 0  # applied
    queue_seconds: float = 0.0  # that requests waited before they were looked at, in sum
    busy_seconds: float = 0.0  # in which the loop did something
    seconds: float = 0.0  # since the start
    held_bytes: Total = 0  # of parameters, state and staged pushes
    limit_bytes: Total = 0  # that it may hold


class ServerBeat(Note, frozen=True, tag="server-beat"):
    figures: ServerFigures
    staleness: Members[tuple[Name, Members[Total]]] = ()  # home only; by job: updates by their staleness, 0 and up
    clocks: Members[tuple[Name, Members[tuple[Ordinal, Total]]]] = ()  # home only; by job: (worker, its clock)
    unreached: Members[Ordinal] = ()  # servers of the map that the sender has not been connected to for long


class OpenSpace(Note, frozen=True, tag="open-space"):
    request: Count
    space: SealedSpace


class CloseSpace(Note, frozen=True, tag="close-space"):
    """The job is over: what the group holds of it may go."""

    request: Count
    job: Name


class ChangeServers(Note, frozen=True, tag="change-servers"):
    """An administrator's: take servers out, or (for the starter) start `more`."""

    request: Count
    remove: Members[Ordinal] = ()
    more: Ordinal = 0


class StopGroup(Note, frozen=True, tag="stop-group"):
    """An administrator's: whoever started the group should end it."""

    request: Count


class Agreed(Note, frozen=True, tag="agreed"):
    """A request to the keeper is met."""

    request: Count


class GroupStatus(Note, frozen=True, tag="group-status"):
    """Asked of the keeper without the rest, and its answer."""

    request: Count
    map: ServerMap | None = None
    spaces: Members[Name] = ()  # names of jobs
    figures: Members[tuple[Ordinal, ServerFigures]] = ()
    staleness: Members[tuple[Name, Members[Total]]] = ()
    clocks: Members[tuple[Name, Members[tuple[Ordinal, Total]]]] = ()
