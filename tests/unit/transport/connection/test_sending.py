"""What waits to be sent: in order, not copied unless somebody asks, and marks come back when their bytes have left."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.transport.connection.endpoint import PlainEndpoint, plain
from shoal.transport.connection.sending import MOST_PIECES, SendQueue


class Reluctant(PlainEndpoint):
    """Takes so many bytes with each call as it is told; 0: none now."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(socket.AF_UNIX)
        self.counts = iter(counts)
        self.taken = bytearray()

    def sendmsg(self, buffers: Iterable[memoryview], *_: object) -> int:
        batch = list(buffers)
        assert len(batch) <= MOST_PIECES
        offered = b"".join(batch)
        count = min(next(self.counts, len(offered)), len(offered))
        if not count:
            raise BlockingIOError
        self.taken += offered[:count]
        return count


@given(
    pieces=some.lists(some.tuples(some.binary(max_size=40), some.none() | some.integers(0, 3)), max_size=100),
    counts=some.lists(some.integers(0, 50), max_size=60),
    most=some.integers(1, 200),
)
def test_bytes_leave_in_order_and_a_mark_comes_back_when_all_its_bytes_have_left(
    pieces: list[tuple[bytes, int | None]], counts: list[int], most: int
) -> None:
    queue: SendQueue[int] = SendQueue()
    for data, mark in pieces:
        queue.add(data, mark)
    whole = b"".join(data for data, _ in pieces)
    ends, place = [], 0  # of marked pieces, in bytes
    for data, mark in pieces:
        place += len(data)
        if data and mark is not None:
            ends.append((place, mark))
    with Reluctant(counts) as endpoint:
        gone: list[int] = []
        while queue:
            before = len(endpoint.taken)
            assert queue.push(endpoint, most) == len(endpoint.taken) - before <= most
            gone += queue.take_gone()
            assert gone == [mark for end, mark in ends if end <= len(endpoint.taken)]
            assert queue.size == len(whole) - len(endpoint.taken)
        assert endpoint.taken == whole
        assert not queue.take_gone()


@pytest.fixture
def pair() -> Iterator[tuple[PlainEndpoint, socket.socket]]:
    one, other = socket.socketpair()
    with plain(one) as near, other:
        near.setblocking(False)
        yield near, other


def test_memory_that_is_detached_may_change_and_other_memory_is_read_when_it_leaves(
    pair: tuple[PlainEndpoint, socket.socket],
) -> None:
    near, other = pair
    kept, lent = bytearray(b"kept" * 4), bytearray(b"lent" * 4)
    queue: SendQueue[str] = SendQueue()
    queue.add(memoryview(kept), "mine")
    queue.add(memoryview(lent), "theirs")
    queue.detach("mine")
    kept[:], lent[:] = b"!" * 16, b"?" * 16
    assert queue.push(near) == 32
    assert other.recv(100) == b"kept" * 4 + b"?" * 16
    assert queue.take_gone() == ["theirs"], "what is detached has no mark any more"


def test_memory_of_any_shape_is_sent_as_its_bytes(pair: tuple[PlainEndpoint, socket.socket]) -> None:
    near, other = pair
    queue: SendQueue[None] = SendQueue()
    queue.add(memoryview(bytes(range(16))).cast("I"))
    assert queue.size == 16
    assert queue.push(near, 10) == 10
    assert queue.push(near) == 6
    assert other.recv(100) == bytes(range(16))
