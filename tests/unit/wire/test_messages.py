"""Control messages and the handshake: typed both ways, and nothing foreign gets through."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.errors import WireError
from shoal.values import Address
from shoal.wire import messages
from shoal.wire.message_frames import body_length
from support import random_messages


@given(random_messages.messages(*typing.get_args(messages.ClientMessage)))
def test_a_client_s_message_arrives_as_it_was_sent(message: messages.ClientMessage) -> None:
    data = messages.encode(message)
    assert body_length(data[:4], messages.MAX_MESSAGE_BYTES) == len(data) - 4
    assert messages.decode_client(data[4:]) == message


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    for decode in (messages.decode_client, messages.decode_coordinator):
        try:
            found = decode(data)
        except WireError:
            continue
        assert isinstance(found, messages.Message)


def test_wrong_types_and_other_sides_messages_are_refused() -> None:
    join = messages.Join(version=1, worker=0, host="h", process=1, address=Address("127.0.0.1", 1))
    with pytest.raises(WireError, match="not a message of the coordinator"):
        messages.decode_coordinator(messages.encode(join)[4:])
    with pytest.raises(WireError, match="not a message of a client"):
        messages.decode_client(
            msgspec.msgpack.encode({"type": "heartbeat", "generation": "1", "step": 0, "operation": ""})
        )


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\1"])
def test_lengths_beyond_the_limit_are_refused_unread(prefix: bytes) -> None:
    with pytest.raises(WireError, match="announces"):
        body_length(prefix, messages.MAX_MESSAGE_BYTES)


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(WireError, match="over the limit"):
        messages.encode(messages.Failed(step=0, error="X", text="x" * messages.MAX_MESSAGE_BYTES))


def test_every_event_and_message_is_in_its_union() -> None:
    assert set(typing.get_args(events.AnyEvent)) == set(events.Event.__subclasses__())
    known = {*typing.get_args(messages.ClientMessage), *typing.get_args(messages.CoordinatorMessage)}
    assert known == set(messages.Message.__subclasses__())
