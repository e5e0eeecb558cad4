"""How both ends of a new connection prove that they hold the same secret. Pure: bytes in, steps out.

    listener -> connector    opening: magic, whether this end insists on TLS, nonce
    connector -> listener    its own opening, in one packet with what comes next
    both ends                TLS, if either end insists
    connector -> listener    purpose, the certificate it was shown, HMAC(secret, "connector", all of the above)
    listener -> connector    HMAC(secret, "listener", all of the above), or a refusal

The secret is never sent. A proof covers both nonces, so a recording proves nothing on another connection. It also
covers the fingerprint of the listener's certificate, so somebody in between who decrypts cannot pass a proof on. The
listener speaks first, so the connector's proof can cover the listener's nonce and needs no packet of its own. The
purpose says what a connection is for and which secret opens it. Not here: sockets (`introduction`), TLS itself (`tls`).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import Refused, WireError
from shoal.wire.derived_keys import session_key

MAGIC = b"shoal\x02"
NONCE_BYTES = PROOF_BYTES = FINGERPRINT_BYTES = 32
_OPENING = struct.Struct("!6s?32s")  # magic, whether its sender insists on TLS, nonce
_CLAIM = struct.Struct("!32s32sH")  # proof, fingerprint of the listener's certificate, length of the purpose
OPENING_BYTES = _OPENING.size
CLAIM_BYTES = _CLAIM.size
MOST_PURPOSE = 2048  # bytes
PLAIN = bytes(FINGERPRINT_BYTES)  # in place of a fingerprint, on a connection without TLS
REFUSAL = bytes(PROOF_BYTES)  # in place of the listener's proof


@dataclass(frozen=True)
class Key:
    """What a connection is for, and the secret that opens it: a job's token, a group's token, a space's key."""

    purpose: bytes
    secret: str = field(repr=False)


class Distrust(enum.Enum):
    """Why a connector ends the handshake."""

    REFUSED = "wrong token, or a job that it does not know; use the token file of that group or job"
    UNPROVEN = "it could not prove that it holds the token; is the address right?"
    INTERCEPTED = (
        "somebody in between decrypts this connection: the certificate shown here is not that of the process which "
        "listens there; nothing was sent that opens anything. Find out who answers at that address"
    )


class Untrusted(Refused):
    """The other end cannot be trusted."""

    def __init__(self, distrust: Distrust) -> None:
        super().__init__(distrust.value)
        self.distrust = distrust


@dataclass(frozen=True)
class Step:
    """What to do next. After that, `take` needs `wanted` more bytes."""

    send: bytes = b""
    secures: bool = False  # begin TLS after the bytes in `send`, then call `secured`
    is_proved: bool = False
    is_refused: bool = False  # close once `send` is out


class _End:
    """What both ends have in common."""

    is_listener: bool

    def __init__(self) -> None:
        self.wanted = OPENING_BYTES  # bytes from the other end that `take` needs next
        self.session = b""  # a key of this connection alone, which both ends have once it is proved
        self._mine = b""  # this end's opening
        self._other = b""  # the other end's opening
        self._fingerprint = PLAIN

    def open(self, *, insists: bool) -> bytes:
        """The bytes to send at once, if any. `insists`: this end talks through TLS or not at all."""
        self._mine = _OPENING.pack(MAGIC, insists, secrets.token_bytes(NONCE_BYTES))
        return self._mine if self.is_listener else b""

    @property
    def is_open(self) -> bool:
        return bool(self._mine)

    def _meet(self, opening: bytes) -> bool:
        """Take in the other end's opening. Returns whether TLS begins."""
        magic, insists, _ = _OPENING.unpack(opening)
        if magic != MAGIC:
            raise WireError(f"a connection begins with {magic!r} instead of {MAGIC!r}: not Shoal, or another version")
        self._other = opening
        return bool(insists or _OPENING.unpack(self._mine)[1])


class ConnectorHandshake(_End):
    """The connecting end."""

    is_listener = False

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.purpose = key.purpose
        self._secret = key.secret

    def take(self, data: bytes) -> Step:
        """`Untrusted`: the other end refuses this one, or is not who it should be."""
        if not self._other:
            try:
                secures = self._meet(data)
            except WireError:
                raise Untrusted(Distrust.UNPROVEN) from None
            return Step(self._mine, secures=True) if secures else Step(self._mine + self._claim(PLAIN))
        if data == REFUSAL:
            raise Untrusted(Distrust.REFUSED)
        if hmac.compare_digest(data, self._proof(b"intercepted")):
            raise Untrusted(Distrust.INTERCEPTED)
        if not hmac.compare_digest(data, self._proof(b"listener")):
            raise Untrusted(Distrust.UNPROVEN)
        self.session = session_key(self._secret, self.purpose, self._other, self._mine)
        return Step(is_proved=True)

    def secured(self, fingerprint: bytes) -> Step:
        """TLS is established; the other end's certificate has this fingerprint."""
        return Step(self._claim(fingerprint))

    def _claim(self, fingerprint: bytes) -> bytes:
        self._fingerprint = fingerprint
        self.wanted = PROOF_BYTES
        return _CLAIM.pack(self._proof(b"connector"), fingerprint, len(self.purpose)) + self.purpose

    def _proof(self, side: bytes) -> bytes:
        return _proof(self._secret, side, self.purpose, self._other, self._mine, self._fingerprint)


class ListenerHandshake(_End):
    """The accepting end. After the proof, the caller sends `answer` once this end is ready to go on."""

    is_listener = True

    def __init__(self, secret_of: Callable[[bytes], str | None]) -> None:
        """`secret_of` says which secret opens connections for a purpose; None: the purpose is unknown."""
        super().__init__()
        self.purpose = b""  # set by the proof
        self.answer = b""
        self.is_intercepted = False  # the connector holds the secret, but was shown somebody else's certificate
        self._secret_of = secret_of
        self._claim: tuple[bytes, bytes] | None = None  # the connector's proof, and the fingerprint it was shown

    def take(self, data: bytes) -> Step:
        if not self._other:
            secures = self._meet(data)
            self.wanted = CLAIM_BYTES
            return Step(secures=secures)
        if self._claim is None:
            proof, fingerprint, length = _CLAIM.unpack(data)
            if not 0 < length <= MOST_PURPOSE:
                raise WireError(f"a connection announces a purpose of {length} bytes; 1 to {MOST_PURPOSE} are allowed")
            self._claim = proof, fingerprint
            self.wanted = length
            return Step()
        return self._judge(data)

    def secured(self, fingerprint: bytes) -> Step:
        """TLS is established; this end's certificate has this fingerprint."""
        self._fingerprint = fingerprint
        return Step()

    def _judge(self, purpose: bytes) -> Step:
        assert self._claim is not None, "the claim precedes its purpose"
        proof, shown = self._claim
        secret = self._secret_of(purpose)
        if secret is None or not hmac.compare_digest(proof, self._proof(secret, b"connector", purpose, shown)):
            return Step(REFUSAL, is_refused=True)
        if shown != self._fingerprint:
            self.is_intercepted = True
            return Step(self._proof(secret, b"intercepted", purpose, shown), is_refused=True)
        self.purpose = purpose
        self.session = session_key(secret, purpose, self._mine, self._other)
        self.answer = self._proof(secret, b"listener", purpose, shown)
        return Step(is_proved=True)

    def _proof(self, secret: str, side: bytes, purpose: bytes, fingerprint: bytes) -> bytes:
        return _proof(secret, side, purpose, self._mine, self._other, fingerprint)


AnyHandshake = ListenerHandshake | ConnectorHandshake


def _proof(secret: str, *parts: bytes) -> bytes:
    """Each part follows its length, so that no two lists of parts give the same bytes."""
    said = b"".join(len(part).to_bytes(4, "big") + part for part in (b"shoal handshake", *parts))
    return hmac.new(secret.encode(), said, hashlib.sha256).digest()
