"""The handshake between two peers, from both ends: sockets that do not block, advanced whenever they are ready.

The listening end sends a nonce; the connecting end says what the connection is for and proves that it holds the job's
token; the listening end proves the same when it gets to that generation. Not here: who waits for whom (`tcp`,
`tcp_listener`, `probe`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from dataclasses import dataclass

from shoal.errors import Refused, WireError
from shoal.values import Address
from shoal.wire import handshake

_HELLO = struct.Struct("!4sIII")
_HELLO_MAGIC = b"SHPR"
HELLO_BYTES = _HELLO.size
REPLY_BYTES = HELLO_BYTES + handshake.REPLY_BYTES


@dataclass(frozen=True)
class Hello:
    """What a connection between two peers is for."""

    generation: int  # 0: none, it only asks whether the other one can be reached
    source: int  # rank of the one that connects
    target: int  # rank of the one that listens

    @property
    def is_probe(self) -> bool:
        return self.generation == 0

    @property
    def purpose(self) -> bytes:
        return f"peer generation={self.generation} source={self.source} target={self.target}".encode()

    def pack(self) -> bytes:
        return _HELLO.pack(_HELLO_MAGIC, self.generation, self.source, self.target)

    @staticmethod
    def unpack(data: bytes) -> Hello:
        magic, generation, source, target = _HELLO.unpack(data)
        if magic != _HELLO_MAGIC:
            raise WireError(f"a peer's connection starts with {magic!r} instead of {_HELLO_MAGIC!r}")
        return Hello(generation=generation, source=source, target=target)


class Arrival:
    """A connection that was accepted: our nonce goes out, its hello and proof come in."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self.socket = connection
        self.hello: Hello | None = None  # set when the proof was right
        self._token = token
        self._nonce = handshake.new_nonce()
        self._answer = b""
        self._read = bytearray()
        connection.setblocking(False)
        connection.send(self._nonce)  # the first bytes of a new connection always find room

    def advance(self) -> bool:
        """Read what is there. True when proven; `OSError` or `WireError`: drop it."""
        try:
            data = self.socket.recv(REPLY_BYTES - len(self._read))
        except BlockingIOError:
            return False
        if not data:
            raise WireError("closed before it proved anything")
        self._read += data
        if len(self._read) < REPLY_BYTES:
            return False
        hello = Hello.unpack(bytes(self._read[:HELLO_BYTES]))
        nonce = bytes(self._read[HELLO_BYTES : HELLO_BYTES + handshake.NONCE_BYTES])
        proof = bytes(self._read[HELLO_BYTES + handshake.NONCE_BYTES :])
        if not handshake.is_proof(handshake.connector_proof(self._token, self._nonce, hello.purpose), proof):
            raise WireError("holds another token")
        self._answer = handshake.listener_proof(self._token, nonce, hello.purpose)
        self.hello = hello
        return True

    def welcome(self) -> socket.socket:
        """Answer the proof with ours: from now on the connection carries frames."""
        self.socket.send(self._answer)
        return self.socket

    @property
    def is_closed(self) -> bool:
        """The other end has let go of a connection that was proven: until it is welcomed it has nothing to say."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Departure:
    """A connection that is being made: its nonce comes in, our hello and proof go out, its proof in."""

    def __init__(self, address: Address, hello: Hello, token: str) -> None:
        self.hello = hello
        self.mask = select.POLLOUT  # what it waits for: being connected, then bytes
        self._address = address
        self._token = token
        self._nonce = handshake.new_nonce()
        self._replied = False
        self._read = bytearray()
        family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setblocking(False)
        code = self.socket.connect_ex(place)
        if code not in (0, errno.EINPROGRESS):
            self.socket.close()
            raise OSError(code, os.strerror(code))

    def advance(self) -> bool:
        """Do what can be done now. True when both sides are proven; `OSError`: the peer is gone or will not have us."""
        if self.mask == select.POLLOUT:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.mask = select.POLLIN
            return False
        wanted = handshake.PROOF_BYTES if self._replied else handshake.NONCE_BYTES
        try:
            data = self.socket.recv(wanted - len(self._read))
        except BlockingIOError:
            return False
        if not data:
            raise OSError(errno.ECONNRESET, "it closed the connection: it ended, is ahead, or holds another token")
        self._read += data
        if len(self._read) < wanted:
            return False
        received, self._read = bytes(self._read), bytearray()
        if not self._replied:
            proof = handshake.connector_proof(self._token, received, self.hello.purpose)
            self.socket.send(self.hello.pack() + self._nonce + proof)
            self._replied = True
            return False
        if not handshake.is_proof(handshake.listener_proof(self._token, self._nonce, self.hello.purpose), received):
            raise Refused(f"whoever listens at {self._address} could not prove that it holds the job's token")
        return True
