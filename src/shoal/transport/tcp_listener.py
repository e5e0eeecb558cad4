"""The one listening socket of a worker process, and the arriving half of the handshake between peers.

Who connects has to prove that it holds the job's token and says for which generation and ranks; until then it costs one
socket and is never waited for. A proven connection for a later generation is kept until this process gets there.
Not here: the connecting half and the loop that drives both (`tcp`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

from shoal.errors import AddressUnavailable, UsageError, WireError
from shoal.values import Address
from shoal.wire import handshake

MAX_UNPROVEN = 256  # connections that have proven nothing yet; beyond it the oldest is dropped

_HELLO = struct.Struct("!4sIII")
_HELLO_MAGIC = b"SHPR"
HELLO_BYTES = _HELLO.size
REPLY_BYTES = HELLO_BYTES + handshake.REPLY_BYTES


@dataclass(frozen=True)
class Hello:
    """What a connection between two peers is for."""

    generation: int
    source: int  # rank of the one that connects
    target: int  # rank of the one that listens

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


class PeerListener:
    """Opened once per process; its address is what the other workers are told. Every generation's mesh uses it."""

    def __init__(self, host: str, token: str) -> None:
        if not token and not Address(host, 0).is_loopback:
            raise UsageError(f"refusing to listen on {host} without a token; use 127.0.0.1 or give the job a token")
        if _is_wildcard(host):
            raise UsageError(f"peers cannot connect to {host}; listen on an address of this machine that they reach")
        self.socket = _listen(host)
        self.address = Address(host=host, port=self.socket.getsockname()[1])
        self.token = token
        self.arrivals: dict[int, Arrival] = {}  # unproven, by descriptor, oldest first
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._proven: dict[tuple[int, int], Arrival] = {}  # by generation and rank of the one that connected
        self._given_up: tuple[int, str] = (0, "")  # newest generation that nobody shall wait for, and why

    def give_up(self, generation: int, reason: str) -> None:
        """From any thread: connecting in this generation or an older one, now or later, raises `Aborted`."""
        if generation > self._given_up[0]:
            self._given_up = (generation, reason)
        os.eventfd_write(self.wake, 1)

    def reason_against(self, generation: int) -> str | None:
        """Why connecting in this generation is of no use any more, if so."""
        newest, reason = self._given_up
        return reason if generation <= newest else None

    def accept(self) -> Arrival | None:
        """The next new connection, if any."""
        try:
            connection, _ = self.socket.accept()
        except (BlockingIOError, ConnectionError):
            return None
        try:
            arrival = Arrival(connection, self.token)
        except OSError:
            connection.close()
            return None
        self.arrivals[connection.fileno()] = arrival
        return arrival

    def drop_oldest(self) -> int | None:
        """The descriptor of a connection that was dropped because too many prove nothing."""
        if len(self.arrivals) <= MAX_UNPROVEN:
            return None
        oldest = next(iter(self.arrivals))
        self.arrivals.pop(oldest).socket.close()
        return oldest

    def keep(self, arrival: Arrival, hello: Hello) -> None:
        """Hold a proven connection until its generation is asked for. A newer one of the same peer replaces it."""
        older = self._proven.pop((hello.generation, hello.source), None)
        if older is not None:
            older.socket.close()
        self._proven[hello.generation, hello.source] = arrival

    def take(self, generation: int) -> list[Arrival]:
        """The kept connections of this generation; those of older ones are closed."""
        for key in [key for key in self._proven if key[0] < generation]:
            self._proven.pop(key).socket.close()
        return [self._proven.pop(key) for key in sorted(self._proven) if key[0] == generation]

    def close(self) -> None:
        """Safe to call twice; not while another thread connects."""
        if self.socket.fileno() < 0:
            return
        for arrival in (*self.arrivals.values(), *self._proven.values()):
            arrival.socket.close()
        self.arrivals.clear()
        self._proven.clear()
        self.socket.close()
        os.close(self.wake)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _listen(host: str) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnavailable(f"cannot listen for peers on {host}: {error.strerror}; check --address") from None
    try:
        listener.bind(place)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(f"cannot listen for peers on {host}: {error.strerror}; check --address") from None
    listener.setblocking(False)
    return listener
