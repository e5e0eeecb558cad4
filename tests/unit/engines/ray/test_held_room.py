"""What the launcher makes of its keeper's messages, however these are cut or lumped together on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from shoal.engines.ray import held_room, texts
from shoal.engines.ray.held_room import HeldRoom
from shoal.engines.ray.room_messages import (
    AgentBegan,
    ClusterReached,
    KeeperFailed,
    KeeperMessage,
    RoomReserved,
    RoomWish,
    line_of,
)
from shoal.errors import UsageError

# Writes each of its arguments at once, when it was told which room to ask for, and then waits for its end.
KEEPER = """
import os, sys, time
sys.stdin.readline()
for part in sys.argv[1:]:
    os.write(1, part.encode())
    time.sleep(0.05)
if sys.stdin.read():
    sys.exit("more than the room was asked for")
"""
WISH = RoomWish(cluster="", bundle={"CPU": 1.0}, fewest=1, most=1, wait=0.0)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def held(monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack, *parts: bytes) -> HeldRoom:
    monkeypatch.setattr(held_room, "KEEPER", ("-S", "-c", KEEPER, *(part.decode() for part in parts)))
    return stack.enter_context(contextlib.closing(HeldRoom(WISH)))


def lines(*messages: KeeperMessage) -> bytes:
    return b"".join(line_of(message) for message in messages)


def test_messages_that_come_together_or_in_pieces_are_all_heard(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    began = AgentBegan(node="a1b2c3d4", is_first=True)
    both = lines(ClusterReached(), RoomReserved())
    held(monkeypatch, stack, both).wait()
    held(monkeypatch, stack, both[:-5], both[-5:]).wait()
    room = held(monkeypatch, stack, lines(ClusterReached(), RoomReserved(), began))
    room.wait()
    assert room.take() == [began]


def test_a_keeper_that_gives_up_is_quoted(monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> None:
    room = held(monkeypatch, stack, lines(ClusterReached(), KeeperFailed(text="no room")))
    with pytest.raises(UsageError, match=r"^no room$"):
        room.wait()


def test_a_keeper_that_ends_is_quoted_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(held_room, "KEEPER", ("-S", "-c", "import sys; sys.exit('no such library')"))
    room = stack.enter_context(contextlib.closing(HeldRoom(WISH)))
    with pytest.raises(UsageError) as failed:
        room.wait()
    assert str(failed.value) == texts.ray_keeper_ended("no such library")
    assert room.take() is None
