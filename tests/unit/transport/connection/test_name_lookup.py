"""Names are asked for aside: whoever wants to connect there is told to try again, and waits for nobody."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from shoal.transport.connection import name_lookup
from shoal.transport.connection.name_lookup import NameLookup, SocketAddress
from shoal.values import Address

PATIENCE = 20.0


def await_answer(names: NameLookup, address: Address) -> SocketAddress:
    limit = time.monotonic() + PATIENCE
    while (found := names.find(address)) is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    return found


def test_numbers_are_known_at_once() -> None:
    assert NameLookup().find(Address("127.0.0.1", 7)) == SocketAddress(socket.AF_INET, ("127.0.0.1", 7))
    found = NameLookup().find(Address("::1", 7))
    assert found is not None and found.family == socket.AF_INET6


def test_a_name_is_known_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, find = threading.Event(), name_lookup.find

    def slow(address: Address, flags: int = 0) -> SocketAddress:
        if not flags:
            may_answer.wait(PATIENCE)
        return find(address, flags)

    monkeypatch.setattr(name_lookup, "find", slow)
    names, address = NameLookup(), Address("localhost", 7)
    assert names.find(address) is None
    assert names.find(address) is None, "it was asked for once"
    may_answer.set()
    assert await_answer(names, address).place[1] == 7


def test_a_name_that_nobody_knows_is_an_error_and_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(address: Address, flags: int = 0) -> SocketAddress:
        raise socket.gaierror(socket.EAI_NONAME, f"{address.host} is not known")

    names, address = NameLookup(), Address("localhost", 7)
    with monkeypatch.context() as patched:
        patched.setattr(name_lookup, "find", unknown)
        with pytest.raises(OSError, match="not known"):
            await_answer(names, address)
    assert await_answer(names, address).place[1] == 7
