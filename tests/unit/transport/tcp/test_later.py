"""Connections that are made when they are needed: by whoever sends first, and only then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from shoal.codecs.identity import Identity
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import Aborted, PeerLost
from shoal.settings.all_reduce_settings import SCHEDULES
from shoal.transport.mesh import first_peers
from shoal.transport.mesh.mesh import STALL_SECONDS
from shoal.transport.mesh.mesh_exchange import exchange_over
from shoal.transport.tcp.later import LaterConnections
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_mesh
from shoal.values import Address, Unreached
from shoal.wire.frames import HEADER_BYTES
from support.collectives import PATIENCE, TOKEN, generation_of, in_threads, plan_of, succeed

torch = pytest.importorskip("torch")


@contextmanager
def listening(size: int) -> Iterator[list[PeerListener]]:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(size)]
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def connected(
    listeners: Sequence[PeerListener], peers: Callable[[int], set[int]], *, number: int = 1, timeout: float = PATIENCE
) -> list[TcpMesh]:
    generation = generation_of([listener.address for listener in listeners], number)
    return succeed(
        *(
            lambda rank=rank: connect_mesh(listeners[rank], generation, rank, timeout, peers=peers(rank))
            for rank in range(len(listeners))
        )
    )


@contextmanager
def closing(meshes: Sequence[TcpMesh]) -> Iterator[Sequence[TcpMesh]]:
    try:
        yield meshes
    finally:
        for mesh in meshes:
            mesh.close()


def nobody(_rank: int) -> set[int]:
    return set()


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pairs of ranks that have connected later, in order: who sends, and to whom."""
    found: list[tuple[int, int]] = []
    connect = LaterConnections.connect

    def counted(self: LaterConnections, peer: int, *arguments: object) -> object:
        found.append((self._rank, peer))
        return connect(self, peer, *arguments)

    monkeypatch.setattr(LaterConnections, "connect", counted)
    return found


def swap(mesh: TcpMesh, peer: int) -> bytes:
    mesh.post(peer, b"%d" % mesh.rank * 1000)
    buffer = bytearray(1000)
    mesh.receive_into(peer, memoryview(buffer))
    mesh.drain()
    return bytes(buffer)


def test_ranks_that_begin_to_send_at_the_same_time_do_not_disturb_each_other(dialled: list[tuple[int, int]]) -> None:
    with listening(3) as listeners, closing(connected(listeners, nobody)) as meshes:
        for _ in range(3):
            assert succeed(lambda: swap(meshes[0], 2), lambda: swap(meshes[2], 0)) == [b"2" * 1000, b"0" * 1000]
    assert sorted(dialled) == [(0, 2), (2, 0)]


def test_a_connection_that_comes_before_the_mesh_is_there_is_kept() -> None:
    with listening(2) as listeners:
        generation = generation_of([listener.address for listener in listeners])
        with closing([connect_mesh(listeners[0], generation, 0, PATIENCE, peers=())]) as (first,):
            sender = threading.Thread(target=first.post, args=(1, b"h" * HEADER_BYTES))
            sender.start()
            with closing([connect_mesh(listeners[1], generation, 1, PATIENCE, peers=())]) as (second,):
                buffer = bytearray(HEADER_BYTES)
                second.receive_into(0, memoryview(buffer))
                assert buffer == b"h" * HEADER_BYTES
                sender.join(PATIENCE)


def test_the_next_generation_does_not_see_connections_of_the_last() -> None:
    with listening(2) as listeners:
        with closing(connected(listeners, nobody)) as meshes:
            meshes[0].post(1, b"old" * HEADER_BYTES)  # nobody asks for it
        with closing(connected(listeners, nobody, number=2)) as meshes:
            assert succeed(lambda: swap(meshes[0], 1), lambda: swap(meshes[1], 0)) == [b"1" * 1000, b"0" * 1000]


def test_a_peer_that_is_gone_before_the_first_bytes_is_named_and_not_taken_for_a_cut_link() -> None:
    with listening(2) as listeners, closing(connected(listeners, nobody, timeout=0.3)) as meshes:
        listeners[1].close()
        with pytest.raises(PeerLost, match=r"rank 1 \(worker 1 at 127.0.0.1:.*cannot be reached: ") as lost:
            meshes[0].post(1, b"h")
        assert lost.value.peer == 1
        assert meshes[0].unreached(lambda: False) == Unreached()


@pytest.mark.parametrize("is_waiting", [False, True], ids=["to send", "to receive"])
def test_a_peer_that_has_left_without_a_connection_is_missed(is_waiting: bool) -> None:
    with listening(2) as listeners, closing(connected(listeners, nobody, timeout=0.3)) as meshes:
        meshes[1].close()
        with pytest.raises(PeerLost) as lost:
            if is_waiting:
                meshes[0].receive_into(1, memoryview(bytearray(HEADER_BYTES)))
            else:
                meshes[0].post(1, b"h")
        assert lost.value.peer == 1


def test_a_rank_that_waits_for_a_peer_without_a_connection_sees_when_that_one_leaves() -> None:
    with listening(2) as listeners, closing(connected(listeners, nobody)) as meshes:
        timer = threading.Timer(2 * STALL_SECONDS, meshes[1].close)
        timer.start()
        with pytest.raises(PeerLost, match="rank 1 left: it had finished, while this rank still needs its data"):
            meshes[0].receive_into(1, memoryview(bytearray(HEADER_BYTES)))
        timer.join()


def test_a_peer_that_finishes_without_reading_what_it_was_sent_is_not_taken_for_dead() -> None:
    with listening(3) as listeners, closing(connected(listeners, nobody)) as meshes:
        meshes[0].post(1, b"h")
        meshes[1].close()
        assert succeed(lambda: swap(meshes[0], 2), lambda: swap(meshes[2], 0)) == [b"2" * 1000, b"0" * 1000]


def test_a_rank_that_fails_tells_those_whose_connections_it_has_not_used_yet() -> None:
    with listening(3) as listeners, closing(connected(listeners, nobody)) as meshes:
        meshes[0].post(1, b"h")
        meshes[1].abort("rank 2 is gone", blamed=2)
        with pytest.raises(PeerLost, match="rank 2 is gone, says rank 1"):
            meshes[0].receive_into(1, memoryview(bytearray(HEADER_BYTES)))


def test_an_abort_ends_connecting_to_a_peer_whose_process_stands_still() -> None:
    with listening(1) as (listener,), socket.create_server(("127.0.0.1", 0)) as stopped:
        address = Address("127.0.0.1", stopped.getsockname()[1])
        generation = generation_of([listener.address, address])
        with closing([connect_mesh(listener, generation, 0, 0.1, peers=())]) as (mesh,):
            timer = threading.Timer(0.5, mesh.abort, args=("there is news",))  # longer than a machine has to answer
            timer.start()
            with pytest.raises(Aborted, match="there is news"):
                mesh.post(1, b"h")
            timer.join()


def test_a_lost_neighbour_ends_connecting_to_somebody_else() -> None:
    with listening(2) as listeners, socket.create_server(("127.0.0.1", 0)) as stopped:
        address = Address("127.0.0.1", stopped.getsockname()[1])
        generation = generation_of([*(listener.address for listener in listeners), address])

        def connect(rank: int) -> TcpMesh:
            return connect_mesh(listeners[rank], generation, rank, PATIENCE, peers={1 - rank})

        with closing(succeed(lambda: connect(0), lambda: connect(1))) as meshes:
            timer = threading.Timer(0.2, meshes[1].abort, args=("it gives up",))
            timer.start()
            found = in_threads(lambda: meshes[0].post(2, b"h"))
            timer.join()
        assert isinstance(found[0], PeerLost)
        assert found[0].peer == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_group_connects_only_the_ranks_that_its_schedule_needs(
    schedule: str, dialled: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_peers, "FULL_UP_TO", 4)
    size = 9
    expected = torch.full((200_000,), float(sum(range(size))))
    with listening(size) as listeners:
        meshes = connected(listeners, lambda rank: set(first_peers.first_peers(rank, size)))
        said = succeed(*(lambda mesh=mesh: exchange_over(mesh, 1)(b"%d" % mesh.rank) for mesh in meshes))
        assert said == [[b"%d" % rank for rank in range(size)]] * size
        assert dialled == [], "through the tree everybody hears of everybody"
        plan = plan_of(size) if schedule == "hierarchical" else None
        groups = [ThreadedGroup.over(mesh, 1, schedule, Identity(), plan) for mesh in meshes]
        try:
            for elements in (10, 200_000):
                tensors = [torch.full((elements,), float(rank)) for rank in range(size)]
                pending = [group.all_reduce(tensor, label="sum") for group, tensor in zip(groups, tensors, strict=True)]
                for each in pending:
                    each.wait()
                assert all(torch.equal(tensor, expected[:elements]) for tensor in tensors)
        finally:
            for group in groups:
                group.close()
    choosers = [Chooser(schedule, size, rank, plan) for rank in range(size)]
    needed = {
        (rank, transfer.peer)
        for rank, chooser in enumerate(choosers)
        for elements in (10, 200_000)
        for step in chooser.all_reduce(4 * elements).rounds
        for transfer in step.sends
        if transfer.peer not in first_peers.first_peers(rank, size)
    }
    assert sorted(dialled) == sorted(needed), "each direction once, and no other"
    assert bool(needed) == (schedule not in ("ring", "tree", "auto", "chain"))
