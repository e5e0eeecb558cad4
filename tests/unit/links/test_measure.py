"""Measuring the links of real meshes: all ranks get the same matrix, and what is wrong has a name."""

from __future__ import annotations

import struct

import pytest

from shoal.errors import Aborted, PeerLost, WireError
from shoal.links.matrix import Hosts, Link
from shoal.links.measure import Figure, best_of, doubtful, measure, survey
from shoal.links.plan import FIXED
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from support.collectives import PATIENCE, TOKEN, TRANSPORTS, generation_of, in_threads, meshes, succeed


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_all_ranks_get_the_same_matrix_of_possible_figures(transport: str, size: int) -> None:
    with meshes(transport, size) as ends:
        found = succeed(*(lambda mesh=mesh: measure(mesh) for mesh in ends))
    assert all(matrix == found[0] for matrix in found)
    assert found[0].size == size
    assert all(0 < link.latency < PATIENCE and link.per_byte > 0 for link in found[0].links())


@pytest.mark.parametrize("hosts", [((0, 1, 2), (3,)), ((3, 1), (0, 2)), ((0, 1, 2, 3),)])
def test_with_hosts_links_between_the_same_two_hosts_are_one(hosts: Hosts) -> None:
    with meshes("tcp", 4) as ends:
        found = succeed(*(lambda mesh=mesh: measure(mesh, hosts) for mesh in ends))
    assert all(matrix == found[0] for matrix in found)
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    between = {
        (host_of[a], host_of[b]): found[0].link(a, b) for a in range(4) for b in range(4) if host_of[a] < host_of[b]
    }
    for (a, b), link in between.items():
        assert all(found[0].link(x, y) == link for x in hosts[a] for y in hosts[b])


def test_groups_can_use_a_mesh_after_it_was_measured() -> None:
    """Nothing of the measuring is left in the streams."""
    with meshes("tcp", 3) as ends:
        succeed(*(lambda mesh=mesh: measure(mesh) for mesh in ends))

        def pass_on(mesh: Mesh) -> bytes:
            mesh.post((mesh.rank + 1) % 3, b"%d" % mesh.rank * 40)
            buffer = bytearray(40)
            mesh.receive_into((mesh.rank - 1) % 3, memoryview(buffer))
            return bytes(buffer)

        assert succeed(*(lambda mesh=mesh: pass_on(mesh) for mesh in ends)) == [b"2" * 40, b"0" * 40, b"1" * 40]


def test_a_slow_direction_is_found() -> None:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(3)]
    try:
        generation = generation_of([listener.address for listener in listeners])
        ends = succeed(
            *(
                lambda rank=rank, listener=listener: connect_mesh(listener, generation, rank, PATIENCE)
                for rank, listener in enumerate(listeners)
            )
        )
        listeners[1].faults.slow(2, PATIENCE, 2e6)
        found = succeed(*(lambda mesh=mesh: measure(mesh) for mesh in ends))
        for mesh in ends:
            mesh.close()
    finally:
        for listener in listeners:
            listener.close()
    slow = found[0].link(1, 2).per_byte
    others = [found[0].link(a, b).per_byte for a, b in ((0, 1), (1, 0), (0, 2), (2, 0))]
    assert slow > 10 * max(others)


def test_a_peer_that_dies_while_links_are_measured_is_named() -> None:
    with meshes("tcp", 3) as ends:

        def die() -> None:
            ends[2].abort("stands for a death")

        results = in_threads(lambda: measure(ends[0]), lambda: measure(ends[1]), die)
    for result in results[:2]:
        assert isinstance(result, PeerLost)
    assert {result.peer for result in results[:2] if isinstance(result, PeerLost)} == {2}


def test_measuring_can_be_aborted() -> None:
    with meshes("tcp", 2) as ends:
        ends[0].abort("the job is over")
        with pytest.raises(Aborted, match="the job is over"):
            measure(ends[0])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"something else that is long enough", "does not measure its links as this rank does"),
        (struct.pack("!16sQQ", b"shoal-links-1\0\0\0", 2**40, 0), "announces 1099511627776 bytes"),
        (struct.pack("!16sQQ", b"shoal-links-1\0\0\0", 5, 0) + b"\xc1\xc1\xc1\xc1\xc1", "cannot be read"),
    ],
)
def test_a_peer_that_does_something_else_is_named(frame: bytes, words: str) -> None:
    with meshes("in-process", 2) as ends:
        ends[1].post(0, frame)
        with pytest.raises(WireError, match=f"rank 1 .*{words}"):
            measure(ends[0])


def figure(source: int, target: int, link: Link, burst: int = 1024) -> Figure:
    return Figure(source, target, burst, link)


def test_links_far_from_the_median_are_doubtful_in_either_direction() -> None:
    usual = Link(1e-5, 1e-9)
    figures = [figure(a, b, usual) for a in range(5) for b in range(5) if a != b]
    assert doubtful(figures) == []
    figures += [figure(7, 6, Link(3e-5, 1e-9)), figure(8, 9, Link(1e-5, 1e-11)), figure(4, 9, Link(1.5e-5, 1.5e-9))]
    assert doubtful(figures) == [(6, 7), (8, 9)]


def test_of_two_measurements_the_larger_burst_and_then_the_faster_one_counts() -> None:
    small, large = figure(0, 1, Link(3e-5, 1e-11), 1024), figure(0, 1, Link(4e-5, 1e-9), 4096)
    again = figure(0, 1, Link(5e-5, 5e-10), 4096)
    for order in ([small, large, again], [again, large, small], [large, small, again]):
        assert best_of(order)[0, 1] == figure(0, 1, Link(3e-5, 5e-10), 4096)


@pytest.mark.parametrize(
    ("schedule", "deterministic"), [("auto", True), ("ring", True), ("tree", False), ("halving-doubling", False)]
)
def test_nothing_is_measured_where_it_does_not_matter(schedule: str, deterministic: bool) -> None:
    with meshes("in-process", 2) as ends:
        assert survey(ends[0], schedule, deterministic=deterministic) is FIXED  # nobody answers, and nobody is asked


def test_a_survey_gives_all_ranks_one_plan() -> None:
    hosts = ((0, 2), (1, 3))
    with meshes("tcp", 4) as ends:
        plans = succeed(*(lambda mesh=mesh: survey(mesh, "auto", hosts) for mesh in ends))
    assert all(plan == plans[0] for plan in plans)
    assert plans[0].hosts == hosts and plans[0].seconds > 0
