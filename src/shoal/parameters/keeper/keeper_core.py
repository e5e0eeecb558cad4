"""What the keeper of a server group does with everything that it hears. Pure: events in, instructions out.

Decides which client may say what, which clients are told of changes, which servers have been silent for too long, and
which are cut off from another server. The shell numbers the clients and gives the times, in seconds. Not here: which
map follows from a change (`server_group`), sockets and the sealing of keys (`keeper_desk`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from shoal.errors import Refused
from shoal.parameters import texts
from shoal.parameters.connections.purposes import KEEPER_PURPOSE, keeper_job_purpose
from shoal.parameters.keeper.cut_links import CutLinks
from shoal.parameters.keeper.group_events import (
    BlocksLost,
    GroupEvent,
    InterceptionSeen,
    MapMade,
    MoreWanted,
    SpaceEnded,
    StopWanted,
)
from shoal.parameters.keeper.server_group import ServerGroup
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Server, ServerMap
from shoal.wire.keeper_messages import (
    Agreed,
    ChangeServers,
    CloseSpace,
    Filled,
    GroupNews,
    GroupStatus,
    Intercepted,
    Lost,
    OpenSpace,
    ServerBeat,
    ServerFigures,
    ServerJoin,
    SpaceFailed,
    StopGroup,
    WatchGroup,
)
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import AnyNote, Refusal

Request = OpenSpace | CloseSpace | ChangeServers | StopGroup | GroupStatus  # an administrator's


@dataclass(frozen=True)
class Caller:
    """The peer at the other end of a connection."""

    client: int
    purpose: bytes  # says which key the client has proved to hold: the group's or a job's (`purposes`)
    session: bytes = field(repr=False)  # key that the keys of jobs are sealed with on this connection


@dataclass(frozen=True)
class Admit:
    """The client is no stranger any more."""

    client: int
    is_server: bool = False
    job: str = ""  # the job whose worker the client is


@dataclass(frozen=True)
class SendNote:
    client: int
    note: AnyNote


@dataclass(frozen=True)
class SendNews:
    """Tell a server the map and the jobs that may use the group; seal the jobs' keys for its connection."""

    client: int
    map: ServerMap | None  # None: the group is not complete yet
    spaces: tuple[SpaceTerms, ...]


@dataclass(frozen=True)
class Refuse:
    """Tell the client the reason, if it reads, and close its connection."""

    client: int
    kind: str  # as in `Refusal`
    reason: str


@dataclass(frozen=True)
class KeeperEvent:
    """Report this event to the process that started the group."""

    event: GroupEvent


KeeperInstruction = Admit | SendNote | SendNews | Refuse | KeeperEvent


@dataclass
class _Seat:
    """A server's connection."""

    number: int
    heard: float  # when the server last said something
    beat: ServerBeat


class KeeperCore:
    """State of one keeper. `most_watchers`: connections that the workers of one job of several may have."""

    def __init__(self, group: ServerGroup, silence_limit: float, most_watchers: int) -> None:
        self._group = group
        self._silence_limit = silence_limit
        self._most_watchers = most_watchers
        self._seats: dict[int, _Seat] = {}  # by client
        self._watchers: dict[int, str] = {}  # by client: the job whose worker the client is; empty: an administrator
        self._cuts = CutLinks()
        self._coming = 0  # servers that are being started

    def is_server(self, client: int) -> bool:
        return client in self._seats

    @property
    def status(self) -> GroupStatus:
        known = self._group.map
        beats = {seat.number: seat.beat for seat in self._seats.values()}
        home = beats.get(known.home.number) if known is not None else None
        return GroupStatus(
            request=0,
            map=known,
            spaces=tuple(sorted(self._group.spaces)),
            figures=tuple(sorted((number, beat.figures) for number, beat in beats.items())),
            staleness=home.staleness if home is not None else (),
            clocks=home.clocks if home is not None else (),
        )

    # Events

    def look(self, now: float, late: float) -> list[KeeperInstruction]:
        """Time has passed; for `late` seconds of it the keeper itself could not hear anybody."""
        out: list[KeeperInstruction] = []
        for seat in tuple(self._seats.values()):
            seat.heard += late
            silence = now - seat.heard
            if silence > self._silence_limit:
                out += self.lose(seat.number, f"nothing was heard of it for {silence:.1f} s", now, is_silent=True)
        cut_off = self._cuts.victim({seat.number for seat in self._seats.values()}, now)
        if cut_off is not None:
            out += self.lose(*cut_off, now)
        return out

    def lose(self, number: int, reason: str, now: float, *, is_silent: bool = False) -> list[KeeperInstruction]:
        """Count this server as lost, even if its connection is open."""
        out: list[KeeperInstruction] = []
        events = self._group.lose(number, reason, now, is_silent=is_silent)
        for client in [client for client, seat in self._seats.items() if seat.number == number]:
            del self._seats[client]
            # A server that was only cut off or asleep finds this refusal when it is back.
            out.append(Refuse(client, "lost", f"server {number} is not in the group any more: {reason}"))
        self._tell(events, out)
        return out

    def announce(self, coming: int) -> list[KeeperInstruction]:
        """`coming` servers are being started; watchers need not give up while there are any."""
        self._coming = coming
        return self._news_for_watchers()

    def closed(self, client: int, reason: str, now: float) -> list[KeeperInstruction]:
        """The client's connection is gone."""
        out: list[KeeperInstruction] = []
        self._forget(client, reason, now, out)
        return out

    def refused(self, client: int, reason: str, now: float) -> list[KeeperInstruction]:
        """Tell the client that its request was bad, and close its connection."""
        out: list[KeeperInstruction] = []
        self._refuse(client, "bad-request", reason, now, out)
        return out

    def heard(self, caller: Caller, note: AnyNote, now: float) -> list[KeeperInstruction]:
        """`WireError`: the key in an `OpenSpace` was not sealed for this connection."""
        out: list[KeeperInstruction] = []
        client = caller.client
        try:
            if client in self._seats:
                self._heard_server(self._seats[client], note, now, out)
            elif isinstance(note, WatchGroup):
                self._seat_watcher(caller, note, now, out)
            elif caller.purpose != KEEPER_PURPOSE:
                raise Refused(f"a worker may only watch the group, not send {type(note).__name__}")
            elif isinstance(note, ServerJoin):
                self._seat_server(client, note, now, out)
            elif isinstance(note, Request):
                out.append(Admit(client))
                self._meet(caller, note, now, out)
            else:
                raise Refused(f"{type(note).__name__} is not for the keeper")
        except Refused as error:
            if isinstance(note, Request):
                out.append(SendNote(client, Refusal(kind="bad-request", reason=str(error), request=note.request)))
            else:
                self._refuse(client, "bad-request", str(error), now, out)
        return out

    # Servers

    def _seat_server(self, client: int, note: ServerJoin, now: float, out: list[KeeperInstruction]) -> None:
        if not self._has_version(client, note.version, now, out):
            return
        server = Server(number=note.number, address=note.address, host=note.host, process=note.process)
        events = self._group.join(server, now)
        out.append(Admit(client, is_server=True))
        self._seats[client] = _Seat(note.number, now, ServerBeat(figures=ServerFigures()))
        if not _has_new_map(events):
            out.append(self._news_for(client))
        self._tell(events, out)

    def _heard_server(self, seat: _Seat, note: AnyNote, now: float, out: list[KeeperInstruction]) -> None:
        seat.heard = now
        if isinstance(note, ServerBeat):
            seat.beat = note
            self._cuts.said(seat.number, note.unreached, now)
        elif isinstance(note, Filled):
            self._tell(self._group.filled(seat.number, note.view, note.size, now), out)
        elif isinstance(note, Lost):
            self._group.lost(seat.number, note)
            out.append(KeeperEvent(BlocksLost(seat.number, note.job, note.blocks, note.size, note.view)))
        elif isinstance(note, SpaceFailed):
            if self._group.end(note.job, note.end):
                self._tell_servers(out)
                out.append(KeeperEvent(SpaceEnded(note.job, note.end.reason)))
        elif isinstance(note, Intercepted):
            out.append(KeeperEvent(InterceptionSeen(note.source, seat.number)))
        else:
            raise Refused(f"{type(note).__name__} is nothing that a server tells the keeper")

    # Workers and administrators

    def _seat_watcher(self, caller: Caller, note: WatchGroup, now: float, out: list[KeeperInstruction]) -> None:
        if not self._has_version(caller.client, note.version, now, out):
            return
        if caller.purpose not in (KEEPER_PURPOSE, keeper_job_purpose(note.job)):
            raise Refused(f"this connection was made with another job's token than that of {note.job}")
        count = sum(job == note.job for job in self._watchers.values())
        if caller.purpose != KEEPER_PURPOSE and len(self._group.spaces) > 1 and count >= self._most_watchers:
            raise Refused(f"job {note.job} has {count} connections to the keeper of the servers: others need some too")
        self._watchers[caller.client] = note.job
        out += [Admit(caller.client, job=note.job), SendNote(caller.client, self._watchers_news)]

    def _meet(self, caller: Caller, note: Request, now: float, out: list[KeeperInstruction]) -> None:
        if isinstance(note, GroupStatus):
            out.append(SendNote(caller.client, msgspec.structs.replace(self.status, request=note.request)))
            return
        if isinstance(note, OpenSpace):
            self._group.open(SpaceTerms.opened(note.space, caller.session))
            self._tell_servers(out)
        elif isinstance(note, CloseSpace):
            self._close_space(note.job, now, out)
        elif isinstance(note, ChangeServers):
            self._change_servers(note, now, out)
        out.append(SendNote(caller.client, Agreed(request=note.request)))
        if isinstance(note, StopGroup):
            out.append(KeeperEvent(StopWanted()))

    def _change_servers(self, note: ChangeServers, now: float, out: list[KeeperInstruction]) -> None:
        if note.more < 0:
            raise Refused(f"{note.more} more servers: name those to take out by their numbers")
        if note.remove:
            self._tell(self._group.remove(note.remove, now), out)
        if note.more:
            out.append(KeeperEvent(MoreWanted(note.more)))

    def _close_space(self, job: str, now: float, out: list[KeeperInstruction]) -> None:
        self._group.close(job)
        for watcher in [watcher for watcher, its in self._watchers.items() if its == job]:
            self._refuse(watcher, "unknown-job", f"job {job} does not use this server group any more", now, out)
        self._tell_servers(out)

    # Telling

    def _tell(self, events: list[GroupEvent], out: list[KeeperInstruction]) -> None:
        if _has_new_map(events):
            self._tell_servers(out)
            out += self._news_for_watchers()
        out += [KeeperEvent(event) for event in events]

    def _tell_servers(self, out: list[KeeperInstruction]) -> None:
        out += [self._news_for(client) for client in self._seats]

    @property
    def _watchers_news(self) -> GroupNews:
        return GroupNews(map=self._group.map, coming=self._coming)

    def _news_for_watchers(self) -> list[KeeperInstruction]:
        return [SendNote(watcher, self._watchers_news) for watcher in self._watchers]

    def _news_for(self, client: int) -> SendNews:
        return SendNews(client, self._group.map, tuple(self._group.spaces.values()))

    def _refuse(self, client: int, kind: str, reason: str, now: float, out: list[KeeperInstruction]) -> None:
        out.append(Refuse(client, kind, reason))
        self._forget(client, reason, now, out)

    def _forget(self, client: int, reason: str, now: float, out: list[KeeperInstruction]) -> None:
        self._watchers.pop(client, None)
        seat = self._seats.pop(client, None)
        if seat is not None:
            self._tell(self._group.lose(seat.number, reason, now), out)

    def _has_version(self, client: int, version: int, now: float, out: list[KeeperInstruction]) -> bool:
        if version != PARAMETER_VERSION:
            reason = texts.wrong_version("this server group", PARAMETER_VERSION, version)
            self._refuse(client, "version", reason, now, out)
        return version == PARAMETER_VERSION


def _has_new_map(events: list[GroupEvent]) -> bool:
    return any(isinstance(event, MapMade) for event in events)
