"""One end of a connected stream, plain TCP or TLS (`tls`), with the methods of a socket.

An endpoint is ready when its socket is. A caller that stops reading before everything is read has to ask `has_more`
before it waits. A caller that could not send everything has to begin its next try with the first byte that was left.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import termios
from collections.abc import Iterable
from typing import Protocol

from shoal import environment

ALL = -1  # as a number of bytes to peek at: all that are there


class Endpoint(Protocol):
    """Errors are those of a socket: `BlockingIOError` where nothing can be done now, `TimeoutError`, `OSError`."""

    @property
    def family(self) -> int: ...

    def fileno(self) -> int: ...

    def send(self, data: bytes | memoryview, /) -> int: ...

    def sendall(self, data: bytes | memoryview, /) -> None: ...

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:
        """How many bytes have left. The caller has to pass the others again, although some may be on their way."""

    def recv(self, size: int, /) -> bytes: ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """How many bytes; 0: the end. If fewer than there is room for, no others lie here unknown to the kernel."""

    def peek(self, most: int) -> bytes:
        """The first unread bytes, which stay unread; empty: the end of the stream."""

    def has_more(self) -> bool:
        """Whether bytes lie here unread that the kernel does not know of."""

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def settimeout(self, seconds: float | None, /) -> None: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


class PlainEndpoint(socket.socket):
    """A socket with the additional methods of `Endpoint`."""

    def peek(self, most: int) -> bytes:
        if most == ALL:  # there is no way to peek only at the last bytes
            waiting = array.array("i", [0])
            fcntl.ioctl(self, termios.FIONREAD, waiting)
            most = max(1, waiting[0])
        return self.recv(most, socket.MSG_PEEK)

    def has_more(self) -> bool:
        return False


def plain(connection: socket.socket) -> PlainEndpoint:
    """The same socket as an endpoint, which owns it from now on."""
    timeout = connection.gettimeout()
    endpoint = PlainEndpoint(connection.family, connection.type, connection.proto, connection.detach())
    endpoint.settimeout(timeout)
    return endpoint


def insists_on_tls(family: int, host: str) -> bool:
    """Whether this process talks to this numeric address only through TLS."""
    if family not in (socket.AF_INET, socket.AF_INET6) or environment.plaintext():
        return False
    address = ipaddress.ip_address(host.partition("%")[0])
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return not (inner or address).is_loopback
