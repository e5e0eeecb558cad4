"""Keys that are derived from a token, so that the token itself is never sent; and secrets in transit. Pure.

A job's token opens its coordinator. Its parameter servers get keys derived from the token, from which nobody can
compute the token: one for the job's name space, which its workers derive themselves, and, if the job starts its own
servers, one for their group. A borrowed group has a token of its own. The space's key goes to that group's keeper, and
from there to its servers, *sealed*: encrypted and authenticated with a key that is derived from the group's token and
from both ends' nonces of that one connection. An eavesdropper learns nothing, and a recording is useless on another
connection. HMAC-SHA256 throughout. Not protected: anything else on a connection, and the key itself from holders of the
group's token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from shoal.errors import WireError

NONCE_BYTES = 16
TAG_BYTES = 32
MOST_SEALED = 256  # bytes of a secret


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Put the length before each part, so that no two lists of parts give the same bytes."""
    return hmac.new(key, b"".join(len(part).to_bytes(8, "big") + part for part in parts), hashlib.sha256).digest()


def group_key(token: str) -> str:
    """The key that the processes of a job's own server group hold instead of the job's token."""
    return _mac(token.encode(), b"shoal derived key", b"server group").hex()


def space_key(token: str, space: str) -> str:
    """The key with which a job's workers open its name space on parameter servers."""
    return _mac(token.encode(), b"shoal derived key", b"server space", space.encode()).hex()


def session_key(secret: str, purpose: bytes, listener_nonce: bytes, connector_nonce: bytes) -> bytes:
    """The key of one connection, known to both ends once they have proved that they hold the secret."""
    return _mac(secret.encode(), b"shoal session key", purpose, listener_nonce, connector_nonce)


def seal(session: bytes, secret: str, about: bytes) -> bytes:
    """Seal a secret for the other end of a connection. `about`: what it belongs to; `unseal` needs the same value."""
    plain = secret.encode()
    if len(plain) > MOST_SEALED:
        raise WireError(f"a secret of {len(plain)} bytes; at most {MOST_SEALED} are sealed")
    nonce = secrets.token_bytes(NONCE_BYTES)
    hidden = _hidden(session, nonce, plain)
    return nonce + hidden + _mac(session, b"shoal seal", about, nonce, hidden)


def unseal(session: bytes, sealed: bytes, about: bytes) -> str:
    """Raises `WireError` if the secret was sealed for another connection or purpose, or was changed."""
    nonce, hidden, tag = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:-TAG_BYTES], sealed[-TAG_BYTES:]
    is_whole = NONCE_BYTES + TAG_BYTES <= len(sealed) <= NONCE_BYTES + MOST_SEALED + TAG_BYTES
    if not is_whole or not hmac.compare_digest(tag, _mac(session, b"shoal seal", about, nonce, hidden)):
        raise WireError("a sealed key is not one for this connection: it was changed, or recorded on another one")
    return _hidden(session, nonce, hidden).decode()


def _hidden(session: bytes, nonce: bytes, data: bytes) -> bytes:
    """Encrypt, or decrypt: the function is its own inverse."""
    blocks = range(-(-len(data) // TAG_BYTES))
    stream = b"".join(_mac(session, b"shoal stream", nonce, block.to_bytes(8, "big")) for block in blocks)
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))
