"""The handshake on one socket, from either end: advanced whenever the socket is ready, or at once on a blocking one.

Not here: what both ends say (`handshake`), how long a stranger may take (`strangers`).
"""

from __future__ import annotations

import errno
import os
import socket

from shoal.transport.connection.endpoint import Endpoint, insists_on_tls, plain
from shoal.transport.connection.handshake import AnyHandshake, ConnectorHandshake, Key, ListenerHandshake, Step
from shoal.transport.connection.name_lookup import SocketAddress
from shoal.transport.connection.tls import TlsEndpoint
from shoal.values import Address

CLOSED = "it closed the connection before it proved anything"


class Introduction:
    """Once `advance` returns True, both ends talk through `endpoint`."""

    def __init__(self, connection: socket.socket, handshake: AnyHandshake, *, is_connected: bool = True) -> None:
        """`connection` belongs to the endpoint from now on."""
        self._plain = plain(connection)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            self._plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.endpoint: Endpoint = self._plain
        self.handshake = handshake
        self.is_connected = is_connected  # False: the socket becomes writable once it is connected
        self.was_refused = False  # by this end
        self._read = bytearray()
        self._source = ""  # host of the other end
        self._securing: TlsEndpoint | None = None

    def open(self) -> None:
        """Send a listener's first bytes, unless `open` or `advance` has done so. `OSError`: the other end is gone."""
        if not self.handshake.is_open:
            name = self._plain.getpeername()  # a tuple only for IP
            self._source = name[0] if isinstance(name, tuple) else ""
            insists = insists_on_tls(self._plain.family, self._source)
            self._say(self.handshake.open(insists=insists))

    def advance(self) -> bool:
        """Do what can be done now; on a blocking socket, everything. True: both ends are proven.

        A listener still has to `welcome`. False: wait until the socket can be read, or written if it is not connected.
        `OSError`, `WireError` or `Untrusted`: close the endpoint.
        """
        if not self.is_connected:
            code = self._plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.is_connected = True
        self.open()
        while not self.was_refused:
            step = self._next_step()
            if step is None:
                return False
            if step.secures:
                self._securing = TlsEndpoint(self._plain, is_listener=self.handshake.is_listener, first=step.send)
                self.endpoint = self._securing
            else:
                self._say(step.send)
            self.was_refused = step.is_refused
            if step.is_proved:
                return True
        return False

    @property
    def interceptor(self) -> str:
        """The host that decrypts in between, if this end listens and has found that out; otherwise empty."""
        if isinstance(self.handshake, ListenerHandshake) and self.handshake.is_intercepted:
            return self._source
        return ""

    def welcome(self) -> Endpoint:
        """Send the listener's answer, which ends the handshake: the connection now serves its purpose."""
        assert isinstance(self.handshake, ListenerHandshake)
        self._say(self.handshake.answer)
        return self.endpoint

    def _next_step(self) -> Step | None:
        """None: the other end's bytes have not all come."""
        if self._securing is not None:
            if not self._securing.shake_hands():
                return None
            fingerprint, self._securing = self._securing.fingerprint, None
            return self.handshake.secured(fingerprint)
        while (missing := self.handshake.wanted - len(self._read)) > 0:
            try:
                data = self.endpoint.recv(missing)
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, CLOSED)
            self._read += data
        taken, self._read = bytes(self._read), bytearray()
        return self.handshake.take(taken)

    def _say(self, data: bytes) -> None:
        if data and self.endpoint.send(data) < len(data):  # the first bytes of a connection always find room
            raise OSError(errno.ENOBUFS, "the connection takes no bytes")


def connect(address: Address, key: Key, timeout: float) -> Introduction:
    """A proven connection that blocks for at most `timeout` seconds at a time. `OSError` or `Untrusted`: it failed."""
    met = Introduction(socket.create_connection((address.host, address.port), timeout), ConnectorHandshake(key))
    try:
        met.advance()
    except BaseException:
        met.endpoint.close()
        raise
    return met


def begin_to_connect(place: SocketAddress) -> socket.socket:
    """A non-blocking socket that becomes writable once it is connected. `OSError`: connecting failed at once."""
    connection = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        code = connection.connect_ex(place.place)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        connection.close()
        raise
    return connection
