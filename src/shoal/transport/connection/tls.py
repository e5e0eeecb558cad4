"""A TLS 1.3 stream over a TCP socket, with the methods of that socket. For one reader and one writer at a time.

TLS is kept apart from the socket (`ssl.MemoryBIO`), so that the same code serves blocking and non-blocking sockets,
received bytes can be peeked at, and callers pass bytes just as they do to plain sockets. While the kernel has not taken
all encrypted bytes, the writer is told that its last byte has not left. The end of the TCP stream is the end: our
messages say where they end, so TLS need not.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Iterable

from shoal.transport.connection import certificates
from shoal.transport.connection.endpoint import ALL, PlainEndpoint

READ_BYTES = 256 * 1024  # asked of the kernel at once
SEND_BYTES = 256 * 1024  # encrypted at once
RECORD_BYTES = 16 * 1024  # the most that a TLS record holds


class _Room(threading.local):
    """A thread's buffer between the kernel and TLS, in use only during one call."""

    def __init__(self) -> None:
        self.bytes = memoryview(bytearray(READ_BYTES))


_room = _Room()


class TlsEndpoint:
    def __init__(self, endpoint: PlainEndpoint, *, is_listener: bool, first: bytes = b"") -> None:
        """`endpoint` belongs to this object from now on. Call `shake_hands` first. `first`: bytes that precede TLS."""
        self._socket = endpoint
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = certificates.own_certificate() if is_listener else None
        context = own.context if own is not None else certificates.connecting_context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_listener)
        self._own = own
        self._state = threading.Lock()  # OpenSSL serves one thread at a time, even if one reads and the other writes
        self._reading = threading.Lock()  # the thread that peeks may not be the one that reads
        self._ahead = bytearray()  # decrypted and unread
        self._unsent = memoryview(first)  # encrypted bytes or `first`, not yet taken by the kernel
        self._owed = 0  # bytes that are encrypted already, although the writer was told that they have not left: 0 or 1

    @property
    def family(self) -> int:
        return self._socket.family

    def shake_hands(self) -> bool:
        """Whether TLS is established. False: call again once the socket can be read.

        A connector's last handshake message leaves with the first bytes that it sends, since it speaks next.
        """
        try:
            while True:
                try:
                    with self._state:
                        self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._encrypted()
                    self._flush()
                    if not self._fill():
                        raise ConnectionResetError(errno.ECONNRESET, "it closed the connection") from None
                else:
                    self._encrypted()
                    if self._own is not None:
                        self._flush()
                    return True
        except BlockingIOError:
            return False
        except ssl.SSLError as error:
            raise _no_tls(error) from None

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the listener's certificate."""
        if self._own is not None:
            return self._own.fingerprint
        shown = self._tls.getpeercert(binary_form=True)
        assert shown is not None, "a listener shows a certificate"
        return certificates.fingerprint(shown)

    # Sending

    def send(self, data: bytes | memoryview, /) -> int:
        return self.sendmsg((memoryview(data),))

    def sendall(self, data: bytes | memoryview, /) -> None:
        left = memoryview(data)
        while left:
            left = left[self.sendmsg((left,)) :]

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:
        if self._owed:
            self._flush()  # `BlockingIOError`: the byte is still owed
        count, owed, self._owed = 0, self._owed, 0
        for buffer in buffers:
            data = buffer.cast("B")[:SEND_BYTES]
            count += len(data)
            skipped = min(owed, len(data))  # encrypted already
            owed -= skipped
            data = data[skipped:]
            with self._state:
                while data:
                    data = data[self._tls.write(data) :]
            if count >= SEND_BYTES:
                break
        self._encrypted()
        try:
            self._flush()
        except BlockingIOError:
            self._owed = 1
            if count <= 1:
                raise
            return count - 1
        return count

    def _encrypted(self) -> None:
        with self._state:
            made = self._outgoing.read()
        self._unsent = memoryview(bytes(self._unsent) + made if self._unsent else made)

    def _flush(self) -> None:
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    # Receiving

    def recv(self, size: int, /) -> bytes:
        room = bytearray(min(size, RECORD_BYTES))
        return bytes(room[: self.recv_into(memoryview(room))])

    def recv_into(self, buffer: memoryview, /) -> int:
        target = buffer.cast("B")
        with self._reading:
            got = min(len(self._ahead), len(target))
            target[:got] = self._ahead[:got]
            del self._ahead[:got]
            while got < len(target):
                count = self._decrypt(target[got:])
                got += count
                if not count and (got or not self._fill()):
                    break
            return got

    def peek(self, most: int) -> bytes:
        with self._reading:
            while (most == ALL or len(self._ahead) < most) and (self._look_ahead() or self._fill_if_there()):
                pass
            return bytes(self._ahead if most == ALL else self._ahead[:most])

    def has_more(self) -> bool:
        with self._reading:
            return bool(self._ahead) or self._look_ahead()

    def _look_ahead(self) -> bool:
        """Decrypt one more record, if a whole one is here."""
        record = memoryview(bytearray(RECORD_BYTES))
        count = self._decrypt(record)
        self._ahead += record[:count]
        return count > 0

    def _decrypt(self, target: memoryview) -> int:
        """How many bytes were decrypted; 0: no whole record is here."""
        try:
            with self._state:
                return self._tls.read(len(target), target)  # type: ignore[return-value]  # a count, where a buffer is given
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return 0
        except ssl.SSLError as error:
            raise _no_tls(error) from None

    def _fill(self) -> bool:
        """Take in the bytes that the kernel has. False: the stream has ended."""
        count = self._socket.recv_into(_room.bytes)
        self._incoming.write(_room.bytes[:count])
        return count > 0

    def _fill_if_there(self) -> bool:
        try:
            count = self._socket.recv_into(_room.bytes, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if self._ahead:
                return False
            raise
        self._incoming.write(_room.bytes[:count])
        return count > 0

    # The socket's own

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int, /) -> None:
        with contextlib.suppress(BlockingIOError):  # the other end does not read; it will see a stream that was cut
            self._flush()
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def setblocking(self, flag: bool, /) -> None:
        self._socket.setblocking(flag)

    def settimeout(self, seconds: float | None, /) -> None:
        self._socket.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """`SO_RCVLOWAT` is ignored: if the missing end of a record is shorter than that, the reader would not wake."""
        if option != socket.SO_RCVLOWAT or level != socket.SOL_SOCKET:
            self._socket.setsockopt(level, option, value)

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return self._socket.getsockopt(level, option, size)


def _no_tls(error: ssl.SSLError) -> OSError:
    return OSError(errno.EBADMSG, f"what came is not what was sent: {error.reason or error}")
