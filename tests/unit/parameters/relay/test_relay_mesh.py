"""What a relayed mesh adds to the contract of all meshes: the server in the middle."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping

import pytest
import torch

from shoal.codecs.identity import Identity
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import PeerLost
from shoal.parameters.relay.relay_mesh import RelayConfig, RelayMesh
from shoal.values import Address, Server, ServerMap
from support.collectives import in_threads, succeed
from support.relays import JOB, TOKEN, RelayServer, relay_meshes

NOBODY = Server(number=4, address=Address("127.0.0.1", 1), host="here", process=1)


def config_of(server: Server, generation: int = 1, size: int = 2) -> RelayConfig:
    return RelayConfig(server=server, job=JOB, key=TOKEN, generation=generation, workers=tuple(range(20, 20 + size)))


def receive(mesh: RelayMesh, peer: int, size: int) -> bytes:
    buffer = bytearray(size)
    mesh.receive_into(peer, memoryview(buffer))
    return bytes(buffer)


def test_a_lost_server_is_named() -> None:
    server = RelayServer()
    try:
        meshes = [RelayMesh(config_of(server.server), rank) for rank in range(2)]
        timer = threading.Timer(0.05, server.close)
        timer.start()
        errors = in_threads(*(lambda mesh=mesh: receive(mesh, 1 - mesh.rank, 64) for mesh in meshes))
        timer.join()
        for error in errors:
            assert isinstance(error, PeerLost)
            assert error.peer is None
            assert "server 7 at 127.0.0.1" in str(error)
        for mesh in meshes:
            mesh.close()
    finally:
        server.close()


def test_a_server_that_keeps_its_connections_and_says_nothing_is_lost() -> None:
    server = RelayServer(is_silent=True)
    try:
        mesh = RelayMesh(dataclasses.replace(config_of(server.server), silence_limit=1.0), 0)
        with pytest.raises(PeerLost, match=r"server 7 .* is gone: it has said nothing for 1 s"):
            receive(mesh, 1, 64)
        mesh.close()
        assert server.echoes
    finally:
        server.close()


def test_a_peer_that_is_slow_is_waited_for_as_long_as_the_server_is_there() -> None:
    server = RelayServer()
    try:
        config = dataclasses.replace(config_of(server.server), silence_limit=1.0)
        first, second = RelayMesh(config, 0), RelayMesh(config, 1)

        def late() -> bytes:
            limit = time.monotonic() + 30
            while server.echoes < 4:  # half of the limit is over each time
                assert time.monotonic() < limit
                time.sleep(0.01)
            second.post(0, b"late")
            second.drain()
            return b""

        assert succeed(lambda: receive(first, 1, 4), late)[0] == b"late"
        first.close()
        second.close()
    finally:
        server.close()


def test_a_server_that_has_left_the_map_passes_nothing_on() -> None:
    server = RelayServer()
    try:
        mesh = RelayMesh(config_of(server.server), 0)
        mesh.map_changed(ServerMap(2, (server.server, NOBODY), (4, 7), (4, 7), 1, "server 4 joined"))
        timer = threading.Timer(
            0.05, lambda: mesh.map_changed(ServerMap(3, (NOBODY,), (4,), (4,), 1, "server 7 was lost"))
        )
        timer.start()
        with pytest.raises(PeerLost, match=r"it is not in the group any more \(server 7 was lost\)"):
            receive(mesh, 1, 64)
        timer.join()
        mesh.close()
    finally:
        server.close()


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(PeerLost, match=r"server 4 at 127\.0\.0\.1:1, .* is gone: Connection refused"):
        RelayMesh(config_of(NOBODY), 0)


def test_a_stranger_is_turned_away() -> None:
    server = RelayServer()
    try:
        with pytest.raises(PeerLost, match="wrong token"):
            RelayMesh(dataclasses.replace(config_of(server.server), key="another"), 0)
    finally:
        server.close()


def test_what_is_sent_to_a_member_that_comes_later_waits_for_it() -> None:
    server = RelayServer()
    try:
        first = RelayMesh(config_of(server.server), 0)
        first.post(1, b"early")
        first.drain()
        second = RelayMesh(config_of(server.server), 1)
        assert receive(second, 0, 5) == b"early"
        first.close()
        second.close()
    finally:
        server.close()


def test_generations_do_not_mix() -> None:
    server = RelayServer()
    try:
        older = [RelayMesh(config_of(server.server, 1), rank) for rank in range(2)]
        older[0].post(1, b"older")
        newer = [RelayMesh(config_of(server.server, 2), rank) for rank in range(2)]
        newer[0].post(1, b"newer")
        older[0].abort("the next generation forms")
        assert receive(newer[1], 0, 5) == b"newer"
        newer[1].check()
        for mesh in (*older, *newer):
            mesh.close()
    finally:
        server.close()


def test_a_check_notices_who_left_without_waiting() -> None:
    with relay_meshes(3) as meshes:
        meshes[0].check()
        meshes[2].abort("enough")
        limit = time.monotonic() + 10
        with pytest.raises(PeerLost) as lost:
            while time.monotonic() < limit:
                meshes[0].check()
        assert lost.value.peer == 2


def test_large_frames_cross_in_both_directions_while_a_third_rank_computes() -> None:
    with relay_meshes(3) as meshes:
        data = bytes(range(256)) * 40_000

        def swap(rank: int) -> bytes:
            meshes[rank].post(2, b"for later", memoryview(data))
            meshes[rank].post(1 - rank, b"h" * 64, memoryview(data))
            received = receive(meshes[rank], 1 - rank, 64 + len(data))
            meshes[rank].drain()
            return received

        assert succeed(lambda: swap(0), lambda: swap(1)) == [b"h" * 64 + data] * 2
        assert receive(meshes[2], 0, 9 + len(data)) == b"for later" + data


def test_what_a_rank_sent_before_it_left_counts_although_it_is_told_something_in_vain() -> None:
    """As when this rank has waited for long, tells the other one so, and finds that all of it has just come."""
    with relay_meshes(2) as meshes:

        def tell(heads: Mapping[int, bytes]) -> None:
            meshes[1].post(0, b"x" * 64)
            meshes[1].close()
            meshes[0].post(1, b"still waiting")

        meshes[0].on_stall = tell
        assert receive(meshes[0], 1, 64) == b"x" * 64


def test_many_short_meetings_that_all_leave_at_once() -> None:
    server = RelayServer()

    def meet(rank: int) -> list[float]:
        sums = []
        for generation in range(1, 101):
            mesh = RelayMesh(config_of(server.server, generation, size=3), rank)
            group = ThreadedGroup.over(mesh, generation, "auto", Identity())
            try:
                values = torch.full((5,), float(rank))
                group.all_reduce([values], label="meeting").wait()
                sums.append(float(values[0]))
            finally:
                group.close()
        return sums

    try:
        assert succeed(*(lambda rank=rank: meet(rank) for rank in range(3))) == [[3.0] * 100] * 3
    finally:
        server.close()


def test_who_closes_right_after_the_last_frame_has_finished_and_not_died() -> None:
    """The last words queue behind much that is on its way, while much that came lies unread."""
    server = RelayServer()
    data = bytes(12_000_000)

    def meet(generation: int, rank: int) -> int:
        mesh = RelayMesh(config_of(server.server, generation), rank)
        try:
            mesh.post(1 - rank, b"h" * 64, memoryview(data))
            mesh.drain()
            if rank == 1:
                return 0
            mesh.receive_into(1, memoryview(bytearray(64 + len(data))))
            with pytest.raises(PeerLost, match="rank 1 left: it had finished"):
                receive(mesh, 1, 64)
            return 1
        finally:
            mesh.close()

    try:
        for generation in range(1, 6):
            assert succeed(lambda number=generation: meet(number, 0), lambda number=generation: meet(number, 1)) == [
                1,
                0,
            ]
    finally:
        server.close()
