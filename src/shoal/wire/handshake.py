"""Proof that both ends of a new connection hold the job's token, without sending it. Pure: bytes in, bytes out.

    listener -> connector   nonce (32 bytes)
    connector -> listener   nonce (32 bytes) and HMAC(token, "connector", listener's nonce, purpose)
    listener -> connector   HMAC(token, "listener", connector's nonce, purpose)

`purpose` names what the connection is for (control, or the rank and generation of a peer), so that a proof overheard on
one connection is of no use on another. Not covered: secrecy of what follows.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32
PROOF_BYTES = 32
REPLY_BYTES = NONCE_BYTES + PROOF_BYTES


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def new_token() -> str:
    return secrets.token_hex(32)


def _proof(token: str, side: bytes, nonce: bytes, purpose: bytes) -> bytes:
    return hmac.new(token.encode(), b"|".join((b"shoal", side, purpose, nonce)), hashlib.sha256).digest()


def connector_proof(token: str, listener_nonce: bytes, purpose: bytes) -> bytes:
    return _proof(token, b"connector", listener_nonce, purpose)


def listener_proof(token: str, connector_nonce: bytes, purpose: bytes) -> bytes:
    return _proof(token, b"listener", connector_nonce, purpose)


def is_proof(expected: bytes, given: bytes) -> bool:
    return hmac.compare_digest(expected, given)
