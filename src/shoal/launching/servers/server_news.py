"""News of a group of parameter servers as events of a job. Pure.

Sources are the keeper's own events, its figures, and, for a group that somebody else runs, the differences between two
of its maps.
"""

from __future__ import annotations

from shoal.events import (
    AnyEvent,
    ParametersGone,
    ServerJoined,
    ServerLeft,
    ServerLost,
    ServersChanged,
    ServersMeasured,
)
from shoal.parameters.keeper import group_events
from shoal.parameters.keeper.server_group import TAKEN_OUT
from shoal.transport.connection.door import interception
from shoal.values import Departure, Server, ServerLoad, ServerMap
from shoal.wire.keeper_messages import GroupStatus

MOST_STALENESS = 64  # columns of the histogram; the last one also holds all higher values


def event_of(news: group_events.GroupEvent, space: str) -> AnyEvent | None:
    """None for news that does not concern this job."""
    match news:
        case group_events.GroupServerJoined(server=server):
            return _joined(server)
        case group_events.GroupServerLost(number=number, reason=reason):
            return ServerLost(server=number, reason=reason)
        case group_events.ServerRemoved(number=number):
            return ServerLeft(server=number, reason=TAKEN_OUT)
        case group_events.MapMade():
            return _changed(news.map, news.seconds, news.size)
        case group_events.InterceptionSeen(source=source, number=number):
            return interception("the servers' keeper" if number is None else f"server {number}", source)
        case group_events.BlocksLost() if news.job == space:
            reason = "all servers that held them are lost"
            return ParametersGone(
                server=news.number, blocks=news.blocks, size=news.size, reason=reason, version=news.version
            )
        case _:
            return None


def differences(before: ServerMap | None, after: ServerMap | None, seconds: float) -> list[AnyEvent]:
    """What happened between two maps; the later one came `seconds` after the earlier one was last seen."""
    if after is None or (before is not None and before.version >= after.version):
        return []
    known = {} if before is None else {server.number: server for server in before.servers}
    present = {server.number for server in after.servers}
    departures = {departure.number: departure for departure in after.departures}
    gone = [departures.get(number, Departure(number, after.reason)) for number in known if number not in present]
    told: list[AnyEvent] = [_gone(departure) for departure in gone]
    told += [_joined(server) for server in after.servers if server.number not in known]
    return [*told, _changed(after, seconds, 0)]


def measured(status: GroupStatus, space: str) -> ServersMeasured | None:
    """None while there are no figures yet."""
    spoken = [(number, figures) for number, figures in sorted(status.figures) if figures.seconds > 0]
    if status.map is None or not spoken:
        return None
    staleness = next((counts for job, counts in status.staleness if job == space), ())
    if len(staleness) > MOST_STALENESS:
        staleness = (*staleness[: MOST_STALENESS - 1], sum(staleness[MOST_STALENESS - 1 :]))
    return ServersMeasured(
        version=status.map.version,
        loads=tuple(
            ServerLoad(
                server=number,
                seconds=figures.seconds,
                bytes_in=figures.bytes_in,
                bytes_out=figures.bytes_out,
                requests=figures.requests,
                updates=figures.updates,
                queue_seconds=figures.queue_seconds,
                busy_seconds=figures.busy_seconds,
                held_bytes=figures.held_bytes,
                limit_bytes=figures.limit_bytes,
            )
            for number, figures in spoken
        ),
        staleness=staleness,
        clocks=next((tuple(sorted(clocks)) for job, clocks in status.clocks if job == space), ()),
    )


def _gone(departure: Departure) -> AnyEvent:
    kind = ServerLeft if departure.is_wanted else ServerLost
    return kind(server=departure.number, reason=departure.reason)


def _joined(server: Server) -> ServerJoined:
    return ServerJoined(server=server.number, host=server.host, process=server.process, address=str(server.address))


def _changed(made: ServerMap, seconds: float, size: int) -> ServersChanged:
    return ServersChanged(
        version=made.version,
        servers=tuple(sorted(server.number for server in made.servers)),
        is_settled=made.is_settled,
        seconds=seconds,
        size=size,
        reason=made.reason,
    )
