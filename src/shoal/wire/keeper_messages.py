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
    number: Ordinal  # with which the server's process was started
    address: Address
    host: Name
    process: Ordinal


class SpaceEnd(msgspec.Struct, frozen=True):
    """Why a group no longer serves a job: the reason with which its workers are refused."""

    reason: Text
    kind: Name = "failed"  # as in `Refusal`


class SealedSpace(msgspec.Struct, frozen=True):
    """A job that may use the group, as sent over a connection: `parameters.keeper.space_terms`."""

    job: Name
    key: Annotated[bytes, Meta(max_length=NONCE_BYTES + MOST_SEALED + TAG_BYTES)]  # sealed: see `derived_keys`
    quota: Size  # bytes of parameters and state over all servers; 0: no limit
    end: SpaceEnd | None = None  # None: the group serves the job


class GroupNews(Note, frozen=True, tag="group-news"):
    """From the keeper to all: the present map, and for servers the jobs that may use them. Also answers ServerJoin."""

    map: ServerMap | None  # None: the group is not complete yet
    spaces: Members[SealedSpace] = ()  # to servers only
    coming: Ordinal = 0  # to watchers only: servers that are being started and will probably join


class WatchGroup(Note, frozen=True, tag="watch-group"):
    """A worker or a launcher wants to hear of every new map."""

    version: Ordinal
    job: Name = ""


class Filled(Note, frozen=True, tag="filled"):
    """The sender holds all its blocks of the map's placement `after`."""

    view: Ordinal
    size: Size = 0  # bytes that the sender has fetched for that


class Lost(Note, frozen=True, tag="lost"):
    """No living server has some blocks that the sender should hold: a worker must assign them from a checkpoint."""

    view: Ordinal
    job: Name
    blocks: Ordinal
    size: Size  # bytes


class SpaceFailed(Note, frozen=True, tag="space-failed"):
    """The sender cannot go on with a job, so no server can: the keeper ends the job's space on all servers."""

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
    queue_seconds: float = 0.0  # total time that requests waited before they were read
    busy_seconds: float = 0.0  # total time that the loop was busy
    seconds: float = 0.0  # since the start
    held_bytes: Total = 0  # of parameters, state and staged pushes
    limit_bytes: Total = 0  # that the server may hold


class ServerBeat(Note, frozen=True, tag="server-beat"):
    figures: ServerFigures
    staleness: Members[tuple[Name, Members[Total]]] = ()  # home only; by job: updates by their staleness, 0 and up
    clocks: Members[tuple[Name, Members[tuple[Ordinal, Total]]]] = ()  # home only; by job: (worker, its clock)
    unreached: Members[Ordinal] = ()  # servers of the map that the sender has not been connected to for long


class OpenSpace(Note, frozen=True, tag="open-space"):
    request: Count
    space: SealedSpace


class CloseSpace(Note, frozen=True, tag="close-space"):
    """The job is over: the group may drop its data."""

    request: Count
    job: Name


class ChangeServers(Note, frozen=True, tag="change-servers"):
    """From an administrator: remove servers, or start `more` (which the process that started the group does)."""

    request: Count
    remove: Members[Ordinal] = ()
    more: Ordinal = 0


class StopGroup(Note, frozen=True, tag="stop-group"):
    """From an administrator: the process that started the group should end it."""

    request: Count


class Agreed(Note, frozen=True, tag="agreed"):
    """A request to the keeper is met."""

    request: Count


class GroupStatus(Note, frozen=True, tag="group-status"):
    """A request to the keeper, which has only `request`, and its answer."""

    request: Count
    map: ServerMap | None = None
    spaces: Members[Name] = ()  # names of jobs
    figures: Members[tuple[Ordinal, ServerFigures]] = ()
    staleness: Members[tuple[Name, Members[Total]]] = ()
    clocks: Members[tuple[Name, Members[tuple[Ordinal, Total]]]] = ()
