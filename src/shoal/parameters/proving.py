"""The handshake of a connection, from both ends, as bytes in and bytes out. No socket.

A listener serves several jobs, each with a key of its own: it tries which of its keys the other end's proof fits.
Whoever holds none of them is sent `REFUSAL` in place of a proof, so that it can say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal.errors import Refused
from shoal.wire import derived_keys, handshake

REFUSAL = bytes(handshake.PROOF_BYTES)  # never a proof
SERVER_PURPOSE = b"parameters server"
KEEPER_PURPOSE = b"keeper"


def job_purpose(job: str) -> bytes:
    """Of a worker's connection to a server."""
    return f"parameters job={job}".encode()


def keeper_job_purpose(job: str) -> bytes:
    """Of a worker's connection to the keeper."""
    return f"keeper job={job}".encode()


@dataclass(frozen=True)
class Key:
    """What a connection may be for, and the secret that whoever makes it must hold: a group's token, a space's key."""

    purpose: bytes
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Proof:
    """What came of the bytes so far."""

    answer: bytes = b""  # to be sent
    is_proved: bool = False
    is_refused: bool = False  # the answer says so; close once it is out


class ListenerProof:
    """The accepting end's."""

    wanted = handshake.REPLY_BYTES  # bytes of the other end that `take` needs

    def __init__(self, keys: Callable[[], Iterable[Key]]) -> None:
        self.purpose = b""  # of the key that fitted
        self.session = b""  # key of this connection, once it is proved
        self._keys = keys
        self._nonce = handshake.new_nonce()

    def first(self) -> bytes:
        return self._nonce

    def take(self, data: bytes) -> Proof:
        nonce, proof = data[: handshake.NONCE_BYTES], data[handshake.NONCE_BYTES :]
        for key in self._keys():
            if handshake.is_proof(handshake.connector_proof(key.secret, self._nonce, key.purpose), proof):
                self.purpose = key.purpose
                self.session = derived_keys.session_key(key.secret, key.purpose, self._nonce, nonce)
                return Proof(handshake.listener_proof(key.secret, nonce, key.purpose), is_proved=True)
        return Proof(REFUSAL, is_refused=True)


class ConnectorProof:
    """The connecting end's."""

    def __init__(self, key: Key) -> None:
        self.purpose = key.purpose
        self.wanted = handshake.NONCE_BYTES
        self.session = b""  # key of this connection, once it is proved
        self._secret = key.secret
        self._nonce = handshake.new_nonce()
        self._listener_nonce = b""  # empty: it has not come yet

    def first(self) -> bytes:
        return b""

    def take(self, data: bytes) -> Proof:
        """`Refused`: the other end does not take us, or is not who we think it is."""
        if not self._listener_nonce:
            self._listener_nonce = data
            self.wanted = handshake.PROOF_BYTES
            return Proof(self._nonce + handshake.connector_proof(self._secret, data, self.purpose))
        if data == REFUSAL:
            raise Refused("wrong token, or a job that it does not know; use the token file of that group or job")
        if not handshake.is_proof(handshake.listener_proof(self._secret, self._nonce, self.purpose), data):
            raise Refused("it could not prove that it holds the token; is the address right?")
        self.session = derived_keys.session_key(self._secret, self.purpose, self._listener_nonce, self._nonce)
        return Proof(is_proved=True)


AnyProof = ListenerProof | ConnectorProof
