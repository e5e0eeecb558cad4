"""Somebody between the two ends of a connection: it passes bytes on, writes them down, changes them, or decrypts."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Self

from shoal.transport.connection.certificates import Certificate, _own_certificate
from shoal.transport.connection.endpoint import Endpoint, plain
from shoal.transport.connection.handshake import MAGIC, OPENING_BYTES
from shoal.transport.connection.tls import TlsEndpoint
from shoal.values import Address

Change = Callable[[bytes, bool], bytes]  # of bytes on their way, with whether the connector sent them


def unchanged(data: bytes, from_connector: bool) -> bytes:
    return data


def without_insistence(data: bytes, from_connector: bool) -> bytes:
    """Both ends are told that the other one does not insist on TLS."""
    return MAGIC + b"\0" + data[len(MAGIC) + 1 :] if data.startswith(MAGIC) else data


def foreign_certificate() -> Certificate:
    """Of somebody else: not this process's."""
    return _own_certificate.__wrapped__()


class Interceptor:
    """Listens in place of whoever listens at `there`, in a thread of its own."""

    def __init__(self, there: Address, *, change: Change = unchanged, decrypts: bool = False) -> None:
        """`decrypts`: it answers TLS with a certificate of its own, and talks TLS to the other side."""
        self.heard = bytearray()  # all that crossed, as it was read here: plain where it decrypts
        self.raw = bytearray()  # the connector's bytes, as they were on the wire
        self.raw_answers = bytearray()  # the listener's
        self._there = there
        self._change = change
        self._certificate = foreign_certificate() if decrypts else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._bell_reader, self._bell = os.pipe()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._bell, b"!")
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.close(self._bell_reader)
        os.close(self._bell)

    def _accept(self) -> None:
        while self._listener in select.select([self._listener, self._bell_reader], [], [])[0]:
            connection, _ = self._listener.accept()
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection((self._there.host, self._there.port)) as far:
            if self._certificate is None:
                self._pass_on(near, far)
            else:
                for source, target in ((far, near), (near, far)):  # the listener speaks first
                    target.sendall(source.recv(OPENING_BYTES, socket.MSG_WAITALL))
                self._decrypt(near, far)

    def _decrypt(self, near: socket.socket, far: socket.socket) -> None:
        assert self._certificate is not None
        inner, outer = TlsEndpoint(plain(near), is_listener=True), TlsEndpoint(plain(far), is_listener=False)
        foreign = TlsEndpoint.__new__(TlsEndpoint)
        foreign.__dict__.update(inner.__dict__)
        foreign._tls = self._certificate.context.wrap_bio(inner._incoming, inner._outgoing, server_side=True)
        try:
            outer.shake_hands()
            foreign.shake_hands()
            self._pass_on(foreign, outer)
        finally:
            foreign.close()
            outer.close()

    def _pass_on(self, near: Endpoint | socket.socket, far: Endpoint | socket.socket) -> None:
        while True:
            ready = [each for each in (near, far) if hasattr(each, "has_more") and each.has_more()]
            ready = ready or select.select([near, far, self._bell_reader], [], [])[0]
            if self._bell_reader in ready:
                return
            for source in ready:
                data = source.recv(65536)
                if not data:
                    return
                self.heard += data
                (self.raw if source is near else self.raw_answers).extend(data)
                (far if source is near else near).sendall(self._change(data, source is near))


class Player:
    """Listens, and says to each who connects what a listener once said to somebody else."""

    def __init__(self, recording: bytes) -> None:
        self._recording = recording
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.sendall(self._recording)
                    while connection.recv(65536):
                        pass
