"""What a group of servers says, as events of a job."""

from __future__ import annotations

import msgspec

from shoal import events
from shoal.launching.servers.server_news import MOST_STALENESS, differences, event_of, measured
from shoal.parameters.keeper import group_events
from shoal.values import Address, Departure, Server, ServerMap
from shoal.wire.keeper_messages import GroupStatus, ServerFigures


def server(number: int) -> Server:
    return Server(number, Address("rack", 7000 + number), "rack", 100 + number)


def made(version: int, *numbers: int, before: tuple[int, ...] | None = None) -> ServerMap:
    return ServerMap(version, tuple(map(server, numbers)), before or numbers, numbers, 1, reason=f"why {version}")


def test_the_keepers_events() -> None:
    joined = event_of(group_events.GroupServerJoined(server(2)), "job")
    assert joined == events.ServerJoined(server=2, host="rack", process=102, address="rack:7002")
    assert event_of(group_events.GroupServerLost(2, "silent"), "job") == events.ServerLost(server=2, reason="silent")
    left = event_of(group_events.ServerRemoved(1), "job")
    assert isinstance(left, events.ServerLeft)
    assert left.server == 1
    changed = event_of(group_events.MapMade(made(3, 0, 2, before=(0, 1)), 0.4, 12), "job")
    assert changed == events.ServersChanged(
        version=3, servers=(0, 2), is_settled=False, seconds=0.4, size=12, reason="why 3"
    )


def test_blocks_of_other_jobs_are_not_this_ones_business() -> None:
    lost = group_events.BlocksLost(number=1, job="mine", blocks=4, size=4096)
    told = event_of(lost, "mine")
    assert isinstance(told, events.ParametersGone)
    assert (told.blocks, told.size) == (4, 4096)
    assert event_of(lost, "another") is None


def test_what_two_maps_differ_in() -> None:
    first = differences(None, made(1, 0, 1), 0.0)
    assert [type(event) for event in first] == [events.ServerJoined, events.ServerJoined, events.ServersChanged]
    lost, joined, changed = differences(made(1, 0, 1), made(2, 0, 2), 0.5)
    assert lost == events.ServerLost(server=1, reason="why 2")
    assert isinstance(joined, events.ServerJoined)
    assert isinstance(changed, events.ServersChanged)
    assert (joined.server, changed.version) == (2, 2)
    assert differences(made(2, 0), made(2, 0), 1.0) == []
    assert differences(made(2, 0), None, 1.0) == []


def test_who_was_taken_out_of_a_group_is_not_lost_and_who_was_lost_has_its_own_reason() -> None:
    gone = (Departure(0, "taken out", is_wanted=True), Departure(1, "it was silent"))
    later = msgspec.structs.replace(made(5, 2), departures=gone)
    left, lost, _ = differences(made(1, 0, 1, 2), later, 0.5)
    assert left == events.ServerLeft(server=0, reason="taken out")
    assert lost == events.ServerLost(server=1, reason="it was silent")


def test_figures_are_the_jobs_own() -> None:
    figures = ServerFigures(bytes_in=10, requests=3, seconds=2.0, held_bytes=5)
    status = GroupStatus(
        request=1,
        map=made(1, 0),
        figures=((0, figures),),
        staleness=(("other", (9,)), ("mine", (1, 2))),
        clocks=(("mine", ((1, 4), (0, 5))),),
    )
    told = measured(status, "mine")
    assert told is not None
    assert (told.staleness, told.clocks) == ((1, 2), ((0, 5), (1, 4)))
    assert (told.loads[0].server, told.loads[0].bytes_in, told.loads[0].held_bytes) == (0, 10, 5)
    assert measured(GroupStatus(request=1), "mine") is None
    silent = GroupStatus(request=1, map=made(1, 0), figures=((0, ServerFigures()),))
    assert measured(silent, "mine") is None


def test_a_long_histogram_keeps_its_sum() -> None:
    status = GroupStatus(
        request=1, map=made(1, 0), figures=((0, ServerFigures(seconds=1.0)),), staleness=(("mine", tuple(range(200))),)
    )
    told = measured(status, "mine")
    assert told is not None
    assert (len(told.staleness), sum(told.staleness)) == (MOST_STALENESS, sum(range(200)))
