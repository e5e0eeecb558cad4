"""How connections between two workers begin: the handshake of `transport.connection` with the workers' purpose.

The listening end proves that it holds the token only when it reaches the generation of the connection. Not here: which
rank waits for which (`tcp`, `tcp_listener`, `probe`).
"""

from __future__ import annotations

import errno
import select
import struct
from dataclasses import dataclass

from shoal.errors import Refused, WireError
from shoal.transport.connection import name_lookup
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import ConnectorHandshake, Distrust, Key, ListenerHandshake, Untrusted
from shoal.transport.connection.introduction import Introduction, begin_to_connect
from shoal.values import Address

_HELLO = struct.Struct("!4sIII")
_HELLO_MAGIC = b"SHPR"


@dataclass(frozen=True)
class PeerHello:
    """The purpose of a connection between two peers."""

    generation: int  # 0: none; the connection only asks whether the peer can be reached
    source: int  # rank that connects
    target: int  # rank that listens

    @property
    def is_probe(self) -> bool:
        return self.generation == 0

    @property
    def purpose(self) -> bytes:
        return _HELLO.pack(_HELLO_MAGIC, self.generation, self.source, self.target)

    @staticmethod
    def of(purpose: bytes) -> PeerHello:
        if len(purpose) != _HELLO.size or not purpose.startswith(_HELLO_MAGIC):
            raise WireError(f"a peer's connection is for {purpose!r} instead of a generation")
        _, generation, source, target = _HELLO.unpack(purpose)
        return PeerHello(generation=generation, source=source, target=target)


def arrival(token: str) -> ListenerHandshake:
    """The handshake of an accepted connection; any purpose has to be a `PeerHello`."""

    def secret_of(purpose: bytes) -> str:
        PeerHello.of(purpose)
        return token

    return ListenerHandshake(secret_of)


class OutgoingConnection:
    """A connection that is being made."""

    def __init__(self, address: Address, hello: PeerHello, token: str) -> None:
        self.hello = hello
        self._address = address
        connection = begin_to_connect(name_lookup.find(address))
        self._met = Introduction(connection, ConnectorHandshake(Key(hello.purpose, token)), is_connected=False)

    @property
    def endpoint(self) -> Endpoint:
        return self._met.endpoint

    @property
    def mask(self) -> int:
        """The poll events to wait for: first the connection, then bytes."""
        return select.POLLIN if self._met.is_connected else select.POLLOUT

    def advance(self) -> bool:
        """Do what can be done now. True: both ends are proven. `OSError`: the peer is gone or refuses us."""
        try:
            return self._met.advance()
        except ConnectionResetError:
            raise OSError(errno.ECONNRESET, "it closed the connection: it ended, is ahead, or is busy") from None
        except Untrusted as untrusted:
            if untrusted.distrust is Distrust.REFUSED:
                raise OSError(errno.ECONNRESET, "it refused the connection: it holds another token") from None
            if untrusted.distrust is Distrust.UNPROVEN:
                raise Refused(
                    f"whoever listens at {self._address} could not prove that it holds the job's token"
                ) from None
            raise Refused(f"at {self._address}, {untrusted}") from None
