"""The links between hosts as people are told of them: the slowest first, one for each direction, none made up."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal import events
from shoal.links.host_links import MOST_LINKS, TYPICAL_BYTES, between_hosts
from shoal.links.matrix import Hosts, Link, completed, uniform
from shoal.values import Address, Generation, Member
from support.examples import scaled

links = some.builds(Link, some.floats(1e-6, 1e-1), some.floats(1e-11, 1e-6))


def generation_of(hosts: Hosts) -> Generation:
    """Worker numbers are ten times the rank, so that no rank is taken for a worker."""
    names = {rank: f"host-{number}" for number, host in enumerate(hosts) for rank in host}
    members = tuple(Member(rank, 10 * rank, names[rank], 1, Address("10.0.0.1", 1)) for rank in sorted(names))
    return Generation(3, members, "auto", "identity", "for a test")


@some.composite
def clusters(draw: some.DrawFn) -> tuple[Hosts, dict[tuple[int, int], Link]]:
    """Ranks by host, in any mixture, and what was measured between some of them."""
    home = draw(some.lists(some.integers(0, 4), min_size=1, max_size=12))
    hosts = tuple(tuple(rank for rank, host in enumerate(home) if host == each) for each in dict.fromkeys(home))
    pairs = [(a, b) for a in range(len(home)) for b in range(len(home)) if a != b]
    chosen = draw(some.lists(some.sampled_from(pairs), unique=True)) if pairs else []
    return hosts, {ends: draw(links) for ends in chosen}


@settings(max_examples=scaled(200), deadline=None)
@given(clusters())
def test_each_measured_direction_between_two_hosts_is_told_once_and_the_slowest_first(
    cluster: tuple[Hosts, dict[tuple[int, int], Link]],
) -> None:
    hosts, found = cluster
    generation = generation_of(hosts)
    event = between_hosts(completed(generation.size, found, hosts), hosts, generation)
    home = {rank: number for number, host in enumerate(hosts) for rank in host}
    expected = {(home[a], home[b]) for a, b in found if home[a] != home[b]}
    if event is None:
        assert not expected
        return
    told = [(link.source // 10, link.target // 10) for link in event.links]
    assert {(home[a], home[b]) for a, b in told} == expected
    assert len(told) == len(expected) == event.measured
    for link, ends in zip(event.links, told, strict=True):
        assert (link.latency, link.bandwidth) == (found[ends].latency, found[ends].bandwidth), "nothing is assumed"
        assert (link.source_host, link.target_host) == (f"host-{home[ends[0]]}", f"host-{home[ends[1]]}")
    taken = [found[ends].seconds(TYPICAL_BYTES) for ends in told]
    assert taken == sorted(taken, reverse=True)
    record = events.Record(time=1.0, event=event)
    assert msgspec.json.decode(msgspec.json.encode(record), type=events.Record) == record


def test_an_event_about_many_hosts_is_bounded_and_counts_what_it_leaves_out() -> None:
    hosts = tuple((rank,) for rank in range(20))
    everything = {(a, b): Link(1e-4, 1e-9) for a in range(20) for b in range(20) if a != b}
    event = between_hosts(completed(20, everything, hosts), hosts, generation_of(hosts))
    assert event is not None
    assert (event.hosts, len(event.links), event.measured) == (20, MOST_LINKS, 380)


def test_nothing_is_told_where_there_is_one_host_or_nothing_was_measured() -> None:
    two, one = ((0,), (1,)), ((0, 1),)
    assert between_hosts(None, two, generation_of(two)) is None
    assert between_hosts(uniform(2, Link(1e-4, 1e-9)), two, generation_of(two)) is None, "assumed, not measured"
    measured = completed(2, {(0, 1): Link(1e-4, 1e-9)}, one)
    assert between_hosts(measured, one, generation_of(one)) is None
