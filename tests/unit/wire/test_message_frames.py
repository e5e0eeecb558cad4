"""Cutting a stream of bytes into messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.wire.message_frames import MessageBuffer
from shoal.wire.messages import (
    MAX_MESSAGE_BYTES,
    Ended,
    Heartbeat,
    Message,
    StopNotice,
    Welcome,
    decode_coordinator,
    encode,
)

SENT = [Welcome(config="a", heartbeat=1.0), StopNotice(reason="b" * 300), Ended(exit_code=0, error="", text="")]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=30))
def test_messages_arrive_whole_however_the_bytes_are_cut(sizes: list[int]) -> None:
    data = b"".join(encode(message) for message in SENT)
    buffer = MessageBuffer(decode_coordinator, MAX_MESSAGE_BYTES)
    received: list[Message] = []
    for size in [*sizes, len(data)]:
        buffer.feed(data[:size])
        data = data[size:]
        while (message := buffer.take()) is not None:
            received.append(message)
    assert received == SENT


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00",
        (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        b"HTTP/1.1 400 Bad Request",
        b"\x00\x00\x00\x03abc",
        encode(Heartbeat(generation=1, step=1, operation="a client's message")),
    ],
    ids=["empty", "too-long", "http", "garbage", "wrong-direction"],
)
def test_what_is_no_message_of_a_coordinator_is_refused(data: bytes) -> None:
    buffer = MessageBuffer(decode_coordinator, MAX_MESSAGE_BYTES)
    buffer.feed(data)
    with pytest.raises(WireError):
        buffer.take()
