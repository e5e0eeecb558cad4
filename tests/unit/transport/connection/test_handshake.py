"""The proof of a secret, alone: no socket, every byte in the hands of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import Refused, WireError
from shoal.transport.connection.handshake import (
    OPENING_BYTES,
    REFUSAL,
    ConnectorHandshake,
    Distrust,
    Key,
    ListenerHandshake,
    Untrusted,
)
from shoal.wire.derived_keys import group_key, space_key
from shoal.wire.token_file import new_token

KEY = Key(b"control", "a secret")
FINGERPRINT, OTHER = bytes(range(32)), bytes(range(1, 33))


def listener_for(*keys: Key) -> ListenerHandshake:
    return ListenerHandshake({key.purpose: key.secret for key in keys}.get)


class Talk:
    """Both ends, with everything between them passed on by `run`, after `change` has had it."""

    def __init__(self, key: Key = KEY, *known: Key, insists: tuple[bool, bool] = (False, False)) -> None:
        self.connector, self.listener = ConnectorHandshake(key), listener_for(*(known or (KEY,)))
        self.insists = insists
        self.shown = self.own = FINGERPRINT
        self.sent: list[bytes] = []  # by whoever spoke next

    def run(self, change=lambda _number, data: data) -> bool:
        """Whether both ends are proved."""

        def passed(data: bytes) -> bytes:
            self.sent.append(data)
            return change(len(self.sent) - 1, data)

        assert not self.connector.open(insists=self.insists[0]), "the listener speaks first"
        to_connector = passed(self.listener.open(insists=self.insists[1]))
        step = self.connector.take(to_connector)
        to_listener = passed(step.send[:OPENING_BYTES])
        assert len(to_listener) == len(to_connector) == OPENING_BYTES
        other = self.listener.take(to_listener)
        self.is_secure = step.secures, other.secures
        assert step.secures == (len(step.send) == OPENING_BYTES), "nothing but the opening precedes TLS"
        claim = step.send[OPENING_BYTES:]
        if step.secures:
            claim = self.connector.secured(self.shown).send
        if other.secures:
            self.listener.secured(self.own)
        claim = passed(claim)
        head, rest = claim[: self.listener.wanted], claim[self.listener.wanted :]
        assert not self.listener.take(head).is_proved
        assert len(rest) >= self.listener.wanted, "the listener waits for bytes that nobody sends"
        outcome = self.listener.take(rest[: self.listener.wanted])
        answer = passed(self.listener.answer if outcome.is_proved else outcome.send)
        return self.connector.take(answer).is_proved and outcome.is_proved


@pytest.mark.parametrize("insists", [(False, False), (True, False), (False, True), (True, True)])
def test_both_ends_prove_the_same_secret_and_share_a_key(insists: tuple[bool, bool]) -> None:
    talk = Talk(insists=insists)
    assert talk.run()
    assert talk.is_secure == (any(insists),) * 2, "one end that insists is enough"
    assert talk.listener.purpose == KEY.purpose
    assert talk.connector.session == talk.listener.session != b""
    again = Talk(insists=insists)
    assert again.run() and again.connector.session != talk.connector.session, "of that connection alone"


secrets = some.text(some.characters(min_codepoint=1, codec="utf-8"), max_size=20)  # HMAC fills keys up with zeros


@given(secrets, secrets, some.binary(min_size=1, max_size=20))
def test_another_secret_or_purpose_is_refused(secret: str, other: str, purpose: bytes) -> None:
    key = Key(purpose, secret)
    if secret == other:
        assert Talk(key, key).run()
    else:
        with pytest.raises(Untrusted) as caught:
            Talk(key, Key(purpose, other)).run()
        assert caught.value.distrust is Distrust.REFUSED
    with pytest.raises(Untrusted):
        Talk(key, Key(purpose + b"!", secret)).run()


@given(some.data())
def test_any_bit_that_somebody_changes_on_the_way_is_noticed(data: some.DataObject) -> None:
    insists = data.draw(some.tuples(some.booleans(), some.booleans()))
    which = data.draw(some.integers(0, 3))

    def change(number: int, message: bytes) -> bytes:
        if number != which:
            return message
        at = data.draw(some.integers(0, 8 * len(message) - 1))
        changed = bytearray(message)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)

    talk = Talk(insists=insists)
    with pytest.raises((Refused, WireError, ValueError, AssertionError)):
        if talk.run(change):
            pytest.fail("both ends are content")
        raise Refused("at least one end is not content")
    assert not (talk.connector.session and talk.listener.session)


def test_whoever_decrypts_in_between_is_named_to_the_connector() -> None:
    talk = Talk(insists=(True, True))
    talk.shown = OTHER
    with pytest.raises(Untrusted, match="somebody in between decrypts this connection") as caught:
        talk.run()
    assert caught.value.distrust is Distrust.INTERCEPTED
    assert not talk.listener.session
    assert talk.listener.is_intercepted, "the listener knows too"


def test_tls_cannot_be_talked_away() -> None:
    """Each end that insists begins TLS, whatever it is told of the other's wishes."""
    talk = Talk(insists=(True, True))
    for_plain = {0: lambda data: data[:6] + b"\0" + data[7:], 1: lambda data: data[:6] + b"\0" + data[7:]}
    with pytest.raises(Untrusted):
        talk.run(lambda number, data: for_plain.get(number, bytes)(data))
    assert talk.is_secure == (True, True)


@given(some.booleans())
def test_a_recorded_connection_proves_nothing_to_another_listener(is_secure: bool) -> None:
    recorded = Talk(insists=(is_secure, is_secure))
    assert recorded.run()
    listeners, opening, claim, answer = recorded.sent
    listener = listener_for(KEY)
    listener.open(insists=is_secure)
    if listener.take(opening).secures:
        listener.secured(FINGERPRINT)
    listener.take(claim[: listener.wanted])
    outcome = listener.take(claim[-len(KEY.purpose) :])
    assert outcome.is_refused and outcome.send == REFUSAL and not listener.answer
    connector = ConnectorHandshake(KEY)
    connector.open(insists=is_secure)
    if connector.take(listeners).secures:
        connector.secured(FINGERPRINT)
    with pytest.raises(Untrusted) as caught:
        connector.take(answer)
    assert caught.value.distrust is Distrust.UNPROVEN


def test_a_derived_key_opens_nothing_that_the_token_opens() -> None:
    token = new_token()
    for key in (group_key(token), space_key(token, "job")):
        with pytest.raises(Untrusted):
            Talk(Key(b"control", key), Key(b"control", token)).run()


def test_openings_and_tokens_do_not_repeat() -> None:
    listeners = listener_for(KEY).open(insists=False)
    assert len({listener_for(KEY).open(insists=False) for _ in range(100)}) == 100
    assert len({opened(ConnectorHandshake(KEY), listeners) for _ in range(100)}) == 100
    assert len({new_token() for _ in range(100)}) == 100


def opened(connector: ConnectorHandshake, listeners: bytes) -> bytes:
    connector.open(insists=False)
    return connector.take(listeners).send[:OPENING_BYTES]


def test_the_secret_itself_is_never_sent() -> None:
    talk = Talk()
    assert talk.run()
    assert KEY.secret.encode() not in b"".join(talk.sent)


@given(some.binary(max_size=200))
def test_bytes_of_anybody_are_refused_or_end_the_connection(data: bytes) -> None:
    listener = listener_for(KEY)
    listener.open(insists=False)
    try:
        while len(data) >= listener.wanted:
            wanted = listener.wanted
            outcome = listener.take(data[:wanted])
            data = data[wanted:]
            assert not outcome.is_proved
            if outcome.is_refused:
                break
    except WireError:
        return
