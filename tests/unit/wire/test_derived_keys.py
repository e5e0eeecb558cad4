"""Keys derived from a token say nothing of it, and a sealed secret is read by the other end of one connection alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import WireError
from shoal.transport.connection.handshake import Key
from shoal.wire.derived_keys import MOST_SEALED, group_key, seal, session_key, space_key, unseal

texts = some.text(max_size=20)
sessions = some.binary(min_size=32, max_size=32)


@given(texts, texts, texts)
def test_every_token_and_every_space_has_a_key_of_its_own(token: str, space: str, other: str) -> None:
    keys = [group_key(token), space_key(token, space), space_key(space, token), space_key(token, other)]
    assert all(len(key) == 64 and key != token for key in keys)
    assert (keys[1] == keys[2]) == (token == space)
    assert (keys[1] == keys[3]) == (space == other)
    assert keys[0] not in keys[1:]


@given(sessions, some.text(max_size=60), some.binary(max_size=40))
def test_what_is_sealed_is_read_with_the_same_session_and_purpose(session: bytes, secret: str, about: bytes) -> None:
    sealed = seal(session, secret, about)
    assert unseal(session, sealed, about) == secret
    assert len(secret) < 4 or secret.encode() not in sealed
    assert seal(session, secret, about) != sealed, "the same secret never looks the same"


@given(sessions, some.data())
def test_what_was_changed_or_recorded_elsewhere_is_refused(session: bytes, data: some.DataObject) -> None:
    sealed = bytearray(seal(session, "secret", b"about"))
    place = data.draw(some.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(some.integers(1, 255))
    for changed in (bytes(sealed), bytes(sealed[:-1]), b"", bytes(1000)):
        with pytest.raises(WireError, match="not one for this connection"):
            unseal(session, changed, b"about")
    whole = seal(session, "secret", b"about")
    for other_session, about in ((bytes(32), b"about"), (session, b"something else")):
        if (other_session, about) != (session, b"about"):
            with pytest.raises(WireError, match="not one for this connection"):
                unseal(other_session, whole, about)


def test_no_secret_is_longer_than_what_a_message_has_room_for() -> None:
    with pytest.raises(WireError, match="at most"):
        seal(bytes(32), "x" * (MOST_SEALED + 1), b"")


def test_sessions_of_two_connections_differ() -> None:
    assert session_key("token", b"keeper", b"a", b"b") != session_key("token", b"keeper", b"ab", b"")


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Key(b"keeper", "hidden"))
