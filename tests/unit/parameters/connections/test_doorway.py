"""Strangers at a server's door: few, for a short time, and never in anybody's way."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import time
from collections.abc import Iterator

import pytest

from shoal.errors import AddressUnavailable, UsageError
from shoal.parameters import texts
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.doorway import Doorway
from shoal.parameters.connections.purposes import job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.transport.connection import strangers as strangers_module
from shoal.transport.connection.handshake import OPENING_BYTES, Key
from shoal.values import Address
from shoal.wire.parameter_messages import AnyNote

KEY = Key(job_purpose("job"), "token")
PATIENCE = 20.0  # seconds until a test gives up


class Ear:
    def __init__(self) -> None:
        self.proven: list[Connection] = []

    def proved(self, connection: Connection) -> None:
        self.proven.append(connection)

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        return None

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None: ...

    def closed(self, connection: Connection, reason: str) -> None: ...


class Door:
    def __init__(self) -> None:
        self.board, self.ear = Switchboard(), Ear()
        self.door = Doorway(Address("127.0.0.1", 0), lambda: [KEY], self.ear)
        self.door.open(self.board)

    def stranger(self) -> socket.socket:
        address = self.door.address
        made = socket.create_connection((address.host, address.port))
        limit = time.monotonic() + PATIENCE
        while not select.select([made], [], [], 0)[0]:  # a nonce, once it is let in
            assert time.monotonic() < limit
            self.turn(1)
        return made

    def turn(self, turns: int = 3) -> None:
        for _ in range(turns):
            self.board.turn(0.02)

    def close(self) -> None:
        self.door.close()
        self.board.close()


@pytest.fixture
def door() -> Iterator[Door]:
    with contextlib.closing(Door()) as made:
        yield made


def is_closed(stranger: socket.socket) -> bool:
    """After the opening that everybody is sent."""
    stranger.settimeout(0.2)
    try:
        while data := stranger.recv(1000):
            assert len(data) <= OPENING_BYTES
    except TimeoutError:
        return False
    return True


def test_the_one_that_came_first_goes_when_there_are_too_many(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "MOST", 2)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(door.stranger()) for _ in range(3)]
        assert [is_closed(stranger) for stranger in strangers] == [True, False, False]


def test_who_says_nothing_goes_after_a_while_and_who_is_known_stays(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Connection.connecting(door.door.address, KEY, Ear())
    door.board.add(known)
    while not door.ear.proven:
        door.turn(1)
    door.door.settled(door.ear.proven[0])
    with door.stranger() as stranger:
        door.door.sweep()
        assert not is_closed(stranger)
        monkeypatch.setattr(strangers_module, "SECONDS", 0.0)
        door.door.sweep()
        door.turn()
        assert is_closed(stranger)
    assert not known.is_closed


def test_a_process_without_a_descriptor_waits_for_one_and_does_not_turn_in_circles(door: Door) -> None:
    address = door.door.address
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with door.stranger() as first, socket.socket() as late:
        free = os.dup(0)
        os.close(free)  # the number that the next one would get
        late.connect((address.host, address.port))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            assert door.board.turn(PATIENCE), "the connection that waits"
            assert not door.board.turn(0.01), "it waits, and nothing is done about it for a while"
            assert is_closed(first), "the oldest stranger makes room"
            limit = time.monotonic() + PATIENCE
            while not select.select([late], [], [], 0)[0]:
                assert time.monotonic() < limit
                door.door.sweep()
                door.turn(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_address_that_cannot_be_listened_on_is_named() -> None:
    with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1"):
        Doorway(Address("192.0.2.1", 0), list, Ear())
    with pytest.raises(UsageError) as caught:
        Doorway(Address("", 0), list, Ear())
    assert str(caught.value) == texts.NO_HOST


def test_others_are_told_a_name_where_every_address_is_listened_on() -> None:
    door = Doorway(Address("0.0.0.0", 0), list, Ear())
    board = Switchboard()
    door.open(board)
    assert door.address.host == socket.gethostname()
    door.close()
    board.close()
