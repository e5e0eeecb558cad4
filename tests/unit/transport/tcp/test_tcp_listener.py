"""The listening socket is served whatever its process does, and keeps nothing that nobody wants."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from shoal.transport.connection.handshake import OPENING_BYTES
from shoal.transport.tcp.probe import reachable
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address
from support.collectives import PATIENCE, TOKEN, generation_of, succeed


@pytest.fixture
def listener() -> Iterator[PeerListener]:
    opened = PeerListener("127.0.0.1", TOKEN)
    yield opened
    opened.close()


def eventually(condition: object) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]  any callable
        assert time.monotonic() < limit
        time.sleep(0.01)


def descriptors() -> int:
    return psutil.Process().num_fds()


def test_a_probe_is_answered_at_any_time(listener: PeerListener) -> None:
    dead = PeerListener("127.0.0.1", TOKEN)
    dead.close()
    other = PeerListener("127.0.0.1", "another token")
    try:
        addresses = {3: listener.address, 4: dead.address, 5: other.address}
        assert reachable(addresses, TOKEN, PATIENCE) == {3}
    finally:
        other.close()


def test_a_machine_that_never_answers_is_given_up_after_the_time_given(listener: PeerListener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = {1: Address(*silent.getsockname()), 2: listener.address}
        assert reachable(addresses, TOKEN, 1.0) == {2}


def test_a_stranger_gets_its_opening_although_nobody_connects(listener: PeerListener) -> None:
    with socket.create_connection((listener.address.host, listener.address.port), PATIENCE) as stranger:
        assert len(stranger.recv(100)) == OPENING_BYTES


def test_a_connection_that_its_peer_gives_up_is_not_kept(listener: PeerListener) -> None:
    """The other rank tries one generation after the other while this process is busy elsewhere."""
    before = descriptors()
    for number in range(1, 20):
        other = PeerListener("127.0.0.1", TOKEN)
        generation = generation_of([listener.address, other.address], number)
        with pytest.raises(Exception, match="cannot be reached"):
            connect_mesh(other, generation, 1, 0.02)
        other.close()
    eventually(lambda: descriptors() == before)


@pytest.mark.long
def test_a_thousand_generations_leave_nothing_behind(listener: PeerListener) -> None:
    other = PeerListener("127.0.0.1", TOKEN)
    try:
        addresses = [listener.address, other.address]
        before = descriptors()
        for number in range(1, 1001):
            generation = generation_of(addresses, number)
            for mesh in succeed(
                lambda generation=generation: connect_mesh(listener, generation, 0, PATIENCE),
                lambda generation=generation: connect_mesh(other, generation, 1, PATIENCE),
            ):
                mesh.close()
        eventually(lambda: descriptors() == before)
    finally:
        other.close()


def test_a_forked_child_does_not_keep_the_port(listener: PeerListener) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")  # what is done after a fork is done by now
        time.sleep(PATIENCE)
        os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"!"
        os.close(reader)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((listener.address.host, listener.address.port), PATIENCE)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_listener_that_is_closed_twice_and_given_up_later_does_not_mind(listener: PeerListener) -> None:
    listener.close()
    listener.close()
    listener.give_up(1, "too late")
    assert listener.reason_against(1) == "too late"
