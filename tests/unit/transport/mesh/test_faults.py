"""Links that are cut or slow on purpose: for how long, for whom, and what both ends see of it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import PeerLost
from shoal.transport.mesh.faults import BURST_SECONDS, LinkFaults
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_mesh
from support.collectives import PATIENCE, TOKEN, generation_of, in_threads, succeed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_cut_ends_by_itself_and_concerns_one_link() -> None:
    clock = Clock()
    faults = LinkFaults(clock)
    assert not faults.is_set
    faults.cut(3, 5.0)
    assert faults.is_cut(3)
    assert not faults.is_cut(4)
    clock.now += 5.1
    assert not faults.is_cut(3)
    assert not faults.is_set


def test_a_cut_from_everybody_outlasts_a_shorter_one_of_one_link() -> None:
    clock = Clock()
    faults = LinkFaults(clock)
    faults.cut(None, 5.0)
    faults.cut(3, 1.0)
    clock.now += 2.0
    assert faults.is_cut(3)
    assert faults.is_cut(4)


@given(some.floats(1e3, 1e9), some.lists(some.tuples(some.floats(0, 0.5), some.integers(1, 10**7)), max_size=50))
def test_a_slow_link_never_takes_more_than_its_rate(rate: float, asked: list[tuple[float, int]]) -> None:
    clock = Clock()
    faults = LinkFaults(clock)
    faults.slow(1, 1e9, rate)
    sent = 0
    for seconds, wanted in asked:
        clock.now += seconds
        allowed = faults.allowance(1, wanted)
        assert 0 <= allowed <= wanted
        sent += allowed
        assert sent <= rate * (clock.now - 100.0 + BURST_SECONDS) + 1
        assert faults.allowance(2, wanted) == wanted


@given(some.floats(100, 1e8))
def test_a_slow_link_comes_near_its_rate_when_it_is_asked_often(rate: float) -> None:
    clock = Clock()
    faults = LinkFaults(clock)
    faults.slow(None, 1e9, rate)
    sent = 0
    for _ in range(1000):
        clock.now += 0.01
        sent += faults.allowance(7, 10**9)
    assert sent >= 0.9 * rate * 10


def test_a_slow_link_is_fast_again_after_its_time() -> None:
    clock = Clock()
    faults = LinkFaults(clock)
    faults.slow(1, 2.0, 10.0)
    assert faults.allowance(1, 1000) == 0
    clock.now += 2.1
    assert faults.allowance(1, 1000) == 1000


class Pair:
    """Two connected ranks, and their listeners."""

    def __init__(self) -> None:
        self.listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(2)]
        self.ends: list[TcpMesh] = []
        self.connect(1)

    def connect(self, number: int, timeout: float = PATIENCE) -> None:
        generation = generation_of([listener.address for listener in self.listeners], number)
        self.ends += succeed(
            *(
                lambda rank=rank, listener=listener: connect_mesh(listener, generation, rank, timeout)
                for rank, listener in enumerate(self.listeners)
            )
        )

    def close(self) -> None:
        for closed in (*self.ends, *self.listeners):
            closed.close()


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    yield made
    made.close()


def receive(mesh: TcpMesh, peer: int, size: int) -> bytes:
    buffer = bytearray(size)
    mesh.receive_into(peer, memoryview(buffer))
    return bytes(buffer)


def test_both_ends_of_a_severed_link_name_each_other(pair: Pair) -> None:
    def cut() -> None:
        time.sleep(0.05)
        pair.ends[0].sever(1)

    errors = in_threads(cut, lambda: receive(pair.ends[0], 1, 120), lambda: receive(pair.ends[1], 0, 120))[1:]
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    assert [error.peer for error in errors] == [1, 0]


def test_a_link_to_somebody_else_stays_whole(pair: Pair) -> None:
    pair.ends[0].sever(7)
    pair.ends[0].post(1, b"still here", memoryview(b""))
    assert receive(pair.ends[1], 0, 10) == b"still here"


def test_a_cut_link_cannot_be_connected_until_its_time_is_over(pair: Pair) -> None:
    clock = Clock()
    faults = pair.listeners[0].faults = LinkFaults(clock)
    faults.cut(1, 5.0)
    with pytest.raises(PeerLost):
        pair.connect(2, timeout=0.2)
    clock.now += 5.1
    pair.connect(3)
    pair.ends[-1].post(0, b"again", memoryview(b""))
    assert receive(pair.ends[-2], 1, 5) == b"again"


def test_bytes_pass_a_slow_link_slowly_and_whole(pair: Pair) -> None:
    data = bytes(range(256)) * 400
    pair.listeners[0].faults.slow(1, PATIENCE, 500_000)

    def send() -> None:
        pair.ends[0].post(1, data[:10], memoryview(data)[10:])
        pair.ends[0].drain()

    started = time.monotonic()
    _, received = succeed(send, lambda: receive(pair.ends[1], 0, len(data)))
    assert received == data
    assert time.monotonic() - started > 0.1  # 0.2 s at this rate; a link that nobody slows down takes under 1 ms
