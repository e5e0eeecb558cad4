"""A proof convinces only who holds the same token, for the same purpose, nonce and side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.wire import handshake

tokens = some.text("0123456789abcdef", max_size=8)
nonces = some.binary(min_size=handshake.NONCE_BYTES, max_size=handshake.NONCE_BYTES)
cases = some.tuples(tokens, nonces, some.binary(max_size=40))


@given(cases, cases)
def test_another_token_nonce_or_purpose_makes_another_proof(one: tuple, other: tuple) -> None:
    for prove in (handshake.connector_proof, handshake.listener_proof):
        assert len(prove(*one)) == handshake.PROOF_BYTES
        assert handshake.is_proof(prove(*one), prove(*other)) == (one == other)


@given(cases)
def test_one_sides_proof_cannot_be_sent_back_as_the_others(case: tuple) -> None:
    assert not handshake.is_proof(handshake.connector_proof(*case), handshake.listener_proof(*case))


def test_nonces_and_tokens_do_not_repeat() -> None:
    assert len({handshake.new_nonce() for _ in range(100)}) == 100
    assert len({handshake.new_token() for _ in range(100)}) == 100
