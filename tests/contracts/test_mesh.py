"""What every mesh promises, over each transport, between threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.errors import Aborted, PeerLost, WorkersDisagree
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import HEADER_BYTES
from support.collectives import TRANSPORTS, in_threads, meshes, succeed

BIG = 24 * 1024 * 1024  # more than any socket buffer holds


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


def receive(mesh: Mesh, peer: int, size: int) -> bytes:
    buffer = bytearray(size)
    mesh.receive_into(peer, memoryview(buffer))
    return bytes(buffer)


def wait_for(mesh: Mesh, peer: int) -> bytes:
    """What a receiver does between frames: it asks for a whole header."""
    return receive(mesh, peer, HEADER_BYTES)


def post(mesh: Mesh, peer: int, data: bytes) -> None:
    mesh.post(peer, data[:1], memoryview(data)[1:])


def test_frames_arrive_in_order_however_they_are_read(transport: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(some.lists(some.binary(min_size=1, max_size=300), max_size=10), some.lists(some.integers(1, 400)))
    def check(frames: list[bytes], lengths: list[int]) -> None:
        for frame in frames:
            post(ends[0], 1, frame)
        everything = b"".join(frames)
        read = b""
        for length in lengths:
            read += receive(ends[1], 0, min(length, len(everything) - len(read)))
        read += receive(ends[1], 0, len(everything) - len(read))
        assert read == everything

    with meshes(transport, 2) as ends:
        check()


def test_two_ranks_that_both_send_more_than_the_buffers_hold_do_not_block_each_other(transport: str) -> None:
    with meshes(transport, 2) as ends:
        datas = [bytes([rank + 1]) * BIG for rank in range(2)]

        def swap(rank: int) -> bytes:
            post(ends[rank], 1 - rank, datas[rank])
            received = receive(ends[rank], 1 - rank, BIG)
            ends[rank].drain()
            return received

        assert succeed(lambda: swap(0), lambda: swap(1)) == datas[::-1]
        assert [end.bytes_sent for end in ends] == [BIG, BIG]


def test_after_drain_a_payload_may_change(transport: str) -> None:
    with meshes(transport, 2) as ends:
        data = bytearray(b"x" * BIG)

        def send() -> None:
            ends[0].post(1, b"h", memoryview(data))
            ends[0].drain()
            data[:] = b"y" * BIG

        _, received = succeed(send, lambda: receive(ends[1], 0, BIG + 1))
        assert received == b"h" + b"x" * BIG


def test_streams_of_different_peers_do_not_mix(transport: str) -> None:
    with meshes(transport, 4) as ends:
        for source in range(4):
            for target in range(4):
                if source != target:
                    post(ends[source], target, f"from {source} to {target}".encode())
        for target in range(4):
            for source in range(4):
                if source != target:
                    assert receive(ends[target], source, 11) == f"from {source} to {target}".encode()


def test_waiting_for_a_peer_counts_as_idle(transport: str) -> None:
    with meshes(transport, 2) as ends:
        is_next = threading.Event()

        def late() -> None:
            is_next.wait()
            time.sleep(0.2)
            post(ends[0], 1, b"late")

        succeed(late, lambda: (is_next.set(), receive(ends[1], 0, 4)))
        assert ends[1].idle_seconds > 0.05
        assert ends[0].idle_seconds == 0.0


def test_abort_wakes_a_waiting_rank_and_its_peers_with_the_reason(transport: str) -> None:
    with meshes(transport, 3) as ends:

        def abort() -> None:
            time.sleep(0.05)
            ends[0].abort("the next generation forms")

        _, own, other = in_threads(abort, lambda: wait_for(ends[0], 1), lambda: wait_for(ends[2], 1))
        assert isinstance(own, Aborted)
        assert str(own) == "the next generation forms"
        assert isinstance(other, PeerLost)
        assert other.peer == 0


def test_peers_name_the_one_because_of_whom_a_rank_gives_up(transport: str) -> None:
    """Something else than the mesh has seen that rank 1 is gone; rank 2 learns it from rank 0 alone."""
    with meshes(transport, 3) as ends:
        ends[0].abort("rank 1 hangs", blamed=1)
        with pytest.raises(PeerLost, match="rank 1 is gone, says rank 0") as error:
            wait_for(ends[2], 0)
        assert error.value.peer == 1
        with pytest.raises(Aborted, match="rank 1 hangs"):
            wait_for(ends[0], 2)


def test_after_an_abort_every_call_fails_with_the_first_reason(transport: str) -> None:
    with meshes(transport, 2) as ends:
        ends[0].abort("first")
        ends[0].abort("second")
        for call in (lambda: post(ends[0], 1, b"xx"), lambda: wait_for(ends[0], 1), ends[0].drain):
            with pytest.raises(Aborted, match="first"):
                call()


def test_waiting_for_a_peer_that_finished_fails_and_names_it(transport: str) -> None:
    with meshes(transport, 2) as ends:
        _, error = in_threads(ends[1].close, lambda: wait_for(ends[0], 1))
        assert isinstance(error, PeerLost)
        assert error.peer == 1


def test_what_a_peer_sent_before_it_finished_still_arrives(transport: str) -> None:
    with meshes(transport, 2) as ends:
        post(ends[1], 0, b"last words")
        ends[1].drain()
        ends[1].close()
        assert receive(ends[0], 1, 10) == b"last words"


@pytest.mark.parametrize("size", [HEADER_BYTES, BIG])
def test_who_tells_something_to_a_peer_that_has_just_finished_misses_nothing(transport: str, size: int) -> None:
    """As one does that waits long for a peer and asks what it does, in the moment in which that one is done."""
    with meshes(transport, 3) as ends:
        post(ends[0], 1, b"unread by the one that leaves")
        post(ends[1], 0, b"last words")
        for end in ends[:2]:
            end.drain()
        ends[1].close()
        for _ in range(3):
            post(ends[0], 1, bytes(size))
            ends[0].drain()
            ends[0].check()
        assert receive(ends[0], 1, 10) == b"last words"
        post(ends[2], 0, b"still here")
        assert receive(ends[0], 2, 10) == b"still here"
        with pytest.raises(PeerLost, match="it had finished") as error:
            wait_for(ends[0], 1)
        assert error.value.peer == 1


def test_who_tells_something_to_a_peer_that_gave_up_learns_of_it(transport: str) -> None:
    with meshes(transport, 2) as ends:
        ends[1].abort("enough")
        ends[1].close()

        def tell() -> None:
            for _ in range(100):
                post(ends[0], 1, bytes(HEADER_BYTES))
                time.sleep(0.01)  # the relay's word of it comes by another thread

        with pytest.raises(PeerLost, match="gave up") as error:
            tell()
        assert error.value.peer == 1


def test_a_peer_that_finished_and_left_does_not_fail_those_who_need_only_others(transport: str) -> None:
    with meshes(transport, 3) as ends:
        post(ends[2], 0, b"unread")
        ends[2].drain()

        def late() -> None:
            ends[2].close()
            time.sleep(0.1)
            post(ends[1], 0, b"still here")

        _, received = succeed(late, lambda: receive(ends[0], 1, 10))
        assert received == b"still here"
        assert receive(ends[0], 2, 6) == b"unread"


def test_a_peer_that_gave_up_is_noticed_by_those_who_wait_for_somebody_else(transport: str) -> None:
    with meshes(transport, 3) as ends:
        _, error = in_threads(lambda: ends[2].abort("enough"), lambda: wait_for(ends[0], 1))
        assert isinstance(error, PeerLost)
        assert error.peer == 2


def test_who_stops_because_of_a_lost_peer_is_not_the_one_that_is_named(transport: str) -> None:
    """Rank 1 notices first and leaves; rank 2, which waits for rank 1, still learns that rank 0 was the one."""
    with meshes(transport, 3) as ends:
        ends[0].abort("stands for a death")
        with pytest.raises(PeerLost) as first:
            wait_for(ends[1], 0)
        assert first.value.peer == 0
        with pytest.raises(PeerLost) as second:
            wait_for(ends[2], 1)
        assert second.value.peer == 0


def test_a_long_wait_shows_what_lies_unread_from_others(transport: str) -> None:
    with meshes(transport, 3) as ends:
        post(ends[2], 0, b"z" * (HEADER_BYTES + 5))
        ends[2].drain()
        seen = []

        def look(heads: dict[int, bytes]) -> None:
            if heads:  # the relay may need more than one look to bring them
                seen.append(dict(heads))
                raise WorkersDisagree("that is something else")

        ends[0].on_stall = look
        with pytest.raises(WorkersDisagree, match="something else"):
            wait_for(ends[0], 1)
        assert seen == [{2: b"z" * HEADER_BYTES}]
        assert receive(ends[0], 2, HEADER_BYTES + 5) == b"z" * (HEADER_BYTES + 5)


def test_closing_twice_is_fine(transport: str) -> None:
    with meshes(transport, 2) as ends:
        ends[0].close()
        ends[0].close()
        ends[0].abort("too late")
        with pytest.raises(Aborted, match="closed"):
            wait_for(ends[0], 1)
