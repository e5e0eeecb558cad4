"""What the keeper does with each connection: who may say what, who is told of changes, who has been silent too long.

Runs in the keeper's thread alone; `status` is replaced whole, so that other threads may read it. Not here: the thread
and the listening socket (`keeper`), decisions about the map (`server_group`).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shoal.errors import Refused, WireError
from shoal.parameters import trouble_log
from shoal.parameters.connection import Connection
from shoal.parameters.cut_links import CutLinks
from shoal.parameters.group_events import BlocksLost, GroupEvent, MapMade, MoreWanted, SpaceEnded, StopWanted
from shoal.parameters.purposes import KEEPER_PURPOSE, keeper_job_purpose
from shoal.parameters.server_group import ServerGroup
from shoal.parameters.space_terms import SpaceTerms
from shoal.values import Server
from shoal.wire.keeper_messages import (
    Agreed,
    ChangeServers,
    CloseSpace,
    Filled,
    GroupNews,
    GroupStatus,
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
from shoal.wire.note_frames import MAX_BODY_BYTES
from shoal.wire.parameter_messages import AnyNote, Refusal

WATCHERS_SHARE, FEWEST_WATCHERS = 4, 32  # a job's connections: one in so many of the files that may be open

Request = OpenSpace | CloseSpace | ChangeServers | StopGroup | GroupStatus  # an administrator's


@dataclass
class _Seat:
    """A server's connection."""

    number: int
    heard: float  # when it last said something
    beat: ServerBeat


class KeeperDesk:
    """Hears all connections of the keeper (`connection.Hearer`)."""

    def __init__(self, group: ServerGroup, on_event: Callable[[GroupEvent], None], silence_limit: float) -> None:
        self.status = GroupStatus(request=0)
        self._group = group
        self._on_event = on_event
        self._silence_limit = silence_limit
        self.settled: Callable[[Connection], None] = lambda _: None  # the keeper's: it is no stranger any more, or gone
        self._seats: dict[Connection, _Seat] = {}
        self._cuts = CutLinks()
        self._most_watchers = max(FEWEST_WATCHERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // WATCHERS_SHARE)
        self._watchers: dict[Connection, str] = {}  # the job whose worker it is; empty: an administrator's
        self._renew()

    # From the keeper

    def look(self, now: float, late: float) -> None:
        """Time has passed; of that nobody could have been heard for `late` seconds."""
        for seat in tuple(self._seats.values()):
            seat.heard += late
            silence = now - seat.heard
            if silence > self._silence_limit:
                self.lose(seat.number, f"nothing was heard of it for {silence:.1f} s", now, is_silent=True)
        cut_off = self._cuts.victim({seat.number for seat in self._seats.values()}, now)
        if cut_off is not None:
            self.lose(*cut_off, now)

    def lose(self, number: int, reason: str, now: float, *, is_silent: bool = False) -> None:
        events = self._group.lose(number, reason, now, is_silent=is_silent)
        for connection in [connection for connection, seat in self._seats.items() if seat.number == number]:
            del self._seats[connection]
            # If it was only cut off or asleep, this is what it finds when it is back.
            self._refuse(connection, "lost", f"server {number} is not in the group any more: {reason}")
        self._tell(events)

    # From connections

    def proved(self, connection: Connection) -> None:
        pass

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        self._refuse(connection, "bad-request", f"{type(note).__name__} with {size} raw bytes: the keeper takes none")
        return None

    def closed(self, connection: Connection, reason: str) -> None:
        self._forget(connection, reason)

    def arrived(self, connection: Connection, note: AnyNote, _payload: memoryview | None) -> None:
        now = time.monotonic()
        try:
            if connection in self._seats:
                self._heard_server(self._seats[connection], note, now)
            elif isinstance(note, WatchGroup):
                self._seat_watcher(connection, note)
            elif connection.purpose != KEEPER_PURPOSE:
                raise Refused(f"a worker may only watch the group, not send {type(note).__name__}")
            elif isinstance(note, ServerJoin):
                self._seat_server(connection, note, now)
            elif isinstance(note, Request):
                self.settled(connection)
                self._meet(connection, note, now)
            else:
                raise Refused(f"{type(note).__name__} is not for the keeper")
        except Refused as error:
            if isinstance(note, Request):
                connection.send(Refusal(kind="bad-request", reason=str(error), request=note.request))
            else:
                self._refuse(connection, "bad-request", str(error))
        except WireError:
            raise  # the connection tells its other end, and ends
        except Exception:  # a fault of ours: whoever brought it about goes, and the group does not
            trouble_log.write_exception()
            if connection not in self._seats:
                self._refuse(connection, "bad-request", f"the keeper could not make sense of {type(note).__name__}")

    # Servers

    def _seat_server(self, connection: Connection, note: ServerJoin, now: float) -> None:
        if not self._has_version(connection, note.version):
            return
        server = Server(number=note.number, address=note.address, host=note.host, process=note.process)
        events = self._group.join(server, now)
        self.settled(connection)
        connection.expect(MAX_BODY_BYTES)
        self._seats[connection] = _Seat(note.number, now, ServerBeat(figures=ServerFigures()))
        if not _has_new_map(events):
            connection.send(self._news_for_server(connection))
        self._tell(events)

    def _heard_server(self, seat: _Seat, note: AnyNote, now: float) -> None:
        seat.heard = now
        if isinstance(note, ServerBeat):
            seat.beat = note
            self._renew()
            self._cuts.said(seat.number, note.unreached, now)
        elif isinstance(note, Filled):
            self._tell(self._group.filled(seat.number, note.view, note.size, now))
        elif isinstance(note, Lost):
            self._group.lost(seat.number, note)
            self._on_event(BlocksLost(seat.number, note.job, note.blocks, note.size, note.view))
        elif isinstance(note, SpaceFailed):
            if self._group.end(note.job, note.end):
                self._tell_servers()
                self._on_event(SpaceEnded(note.job, note.end.reason))
        else:
            raise Refused(f"{type(note).__name__} is nothing that a server tells the keeper")

    # Workers and administrators

    def _seat_watcher(self, connection: Connection, note: WatchGroup) -> None:
        if not self._has_version(connection, note.version):
            return
        if connection.purpose not in (KEEPER_PURPOSE, keeper_job_purpose(note.job)):
            raise Refused(f"this connection was made with another job's token than that of {note.job}")
        count = sum(job == note.job for job in self._watchers.values())
        if connection.purpose != KEEPER_PURPOSE and len(self._group.spaces) > 1 and count >= self._most_watchers:
            raise Refused(f"job {note.job} has {count} connections to the keeper of the servers: others need some too")
        self.settled(connection)
        self._watchers[connection] = connection.party = note.job
        connection.send(GroupNews(map=self._group.map))

    def _meet(self, connection: Connection, note: Request, now: float) -> None:
        if isinstance(note, GroupStatus):
            connection.send(msgspec.structs.replace(self.status, request=note.request))
            return
        if isinstance(note, OpenSpace):
            self._group.open(SpaceTerms.opened(note.space, connection.session))
            self._tell_servers()
        elif isinstance(note, CloseSpace):
            self._close_space(note.job)
        elif isinstance(note, ChangeServers):
            self._change_servers(note, now)
        connection.send(Agreed(request=note.request))
        if isinstance(note, StopGroup):
            self._on_event(StopWanted())

    def _change_servers(self, note: ChangeServers, now: float) -> None:
        if note.more < 0:
            raise Refused(f"{note.more} more servers: name those to take out by their numbers")
        if note.remove:
            self._tell(self._group.remove(note.remove, now))
        if note.more:
            self._on_event(MoreWanted(note.more))

    def _close_space(self, job: str) -> None:
        self._group.close(job)
        for watcher in [watcher for watcher, its in self._watchers.items() if its == job]:
            self._refuse(watcher, "unknown-job", f"job {job} does not use this server group any more")
        self._tell_servers()

    # Telling

    def _tell(self, events: list[GroupEvent]) -> None:
        self._renew()
        if _has_new_map(events):
            self._tell_servers()
            for watcher in tuple(self._watchers):
                watcher.send(GroupNews(map=self._group.map))
        for event in events:
            self._on_event(event)

    def _tell_servers(self) -> None:
        self._renew()
        for connection in tuple(self._seats):
            connection.send(self._news_for_server(connection))

    def _news_for_server(self, connection: Connection) -> GroupNews:
        spaces = tuple(terms.sealed(connection.session) for terms in self._group.spaces.values())
        return GroupNews(map=self._group.map, spaces=spaces)

    def _refuse(self, connection: Connection, kind: str, reason: str) -> None:
        """Tell it why, if it reads, and have no more to do with it."""
        connection.send(Refusal(kind=kind, reason=reason))
        connection.end()
        self._forget(connection, reason)

    def _forget(self, connection: Connection, reason: str) -> None:
        self.settled(connection)
        self._watchers.pop(connection, None)
        seat = self._seats.pop(connection, None)
        if seat is not None:
            self._tell(self._group.lose(seat.number, reason, time.monotonic()))

    def _has_version(self, connection: Connection, version: int) -> bool:
        if version != PARAMETER_VERSION:
            reason = f"this server group speaks version {PARAMETER_VERSION}, not {version}: install the same Shoal"
            self._refuse(connection, "version", reason)
        return version == PARAMETER_VERSION

    def _renew(self) -> None:
        """What `status` says, for whoever reads it next."""
        known = self._group.map
        beats = {seat.number: seat.beat for seat in self._seats.values()}
        home = beats.get(known.home.number) if known is not None else None
        self.status = GroupStatus(
            request=0,
            map=known,
            spaces=tuple(sorted(self._group.spaces)),
            figures=tuple(sorted((number, beat.figures) for number, beat in beats.items())),
            staleness=home.staleness if home is not None else (),
            clocks=home.clocks if home is not None else (),
        )


def _has_new_map(events: list[GroupEvent]) -> bool:
    return any(isinstance(event, MapMade) for event in events)
