"""The one listening socket of a worker process, and the thread that serves it all the time.

Who connects has to prove that it holds the job's token and says for which generation and ranks; until then it costs one
socket for a while and is never waited for (`strangers`). A proven connection is kept until this process gets to its
generation, or its other end closes it. A proven probe is answered and closed: it asks only whether this process can be
reached. Not here: the handshake's two halves (`tcp_handshake`), the connecting side and the mesh of a generation
(`tcp`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import threading
import time
import weakref

from shoal.errors import AddressUnavailable, UsageError, WireError
from shoal.transport.faults import LinkFaults
from shoal.transport.strangers import ACCEPT_AT_ONCE, FULL_SECONDS, Strangers
from shoal.transport.tcp_handshake import Arrival
from shoal.values import Address


class PeerListener:
    """Opened once per process; its address is what the other workers are told. Every generation's mesh uses it."""

    def __init__(self, host: str, token: str) -> None:
        if not token and not Address(host, 0).is_loopback:
            raise UsageError(f"refusing to listen on {host} without a token; use 127.0.0.1 or give the job a token")
        if _is_wildcard(host):
            raise UsageError(f"peers cannot connect to {host}; listen on an address of this machine that they reach")
        self._socket = _listen(host)
        self.address = Address(host=host, port=self._socket.getsockname()[1])
        self.token = token
        self.silence_limit = 5.0  # seconds after which a link whose packets vanish counts as cut
        self.faults = LinkFaults()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # for whoever connects: something is new
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # for the thread: look again
        self._lock = threading.Lock()  # guards what follows
        self._unproven: dict[int, Arrival] = {}  # by descriptor
        self._strangers: Strangers[int] = Strangers()  # their descriptors
        self._full_until = 0.0  # when to accept again, by time.monotonic; there was no descriptor for one more
        self._proven: dict[tuple[int, int], Arrival] = {}  # by generation and rank of the one that connected
        self._oldest = 0  # generations below this one are over for this process
        self._given_up: tuple[int, str] = (0, "")  # newest generation that nobody shall wait for, and why
        self._closed = False
        _open_listeners.add(self)
        self._thread = threading.Thread(target=self._serve, name="shoal-peer-listener", daemon=True)
        self._thread.start()

    def give_up(self, generation: int, reason: str) -> None:
        """From any thread: connecting in this generation or an older one, now or later, raises `Aborted`."""
        with self._lock:
            if generation > self._given_up[0]:
                self._given_up = (generation, reason)
            if not self._closed:
                os.eventfd_write(self.wake, 1)

    def reason_against(self, generation: int) -> str | None:
        """Why connecting in this generation is of no use any more, if so."""
        newest, reason = self._given_up
        return reason if generation <= newest else None

    def take(self, generation: int) -> list[Arrival]:
        """The kept connections of this generation; those of older ones are closed, now and when they come."""
        with self._lock:
            self._oldest = max(self._oldest, generation)
            for key in [key for key in self._proven if key[0] < self._oldest]:
                self._proven.pop(key).socket.close()
            taken = [self._proven.pop(key) for key in sorted(self._proven) if key[0] == generation]
            os.eventfd_write(self._bell, 1)
            return taken

    def close(self) -> None:
        """Safe to call twice; not while another thread connects."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        _open_listeners.discard(self)
        self._release()

    def close_in_child(self) -> None:
        """After a fork: thread and connections are the parent's, and none may stay open here."""
        self._lock = threading.Lock()  # the parent's thread may have held it
        self._closed = True
        self._release()

    def _release(self) -> None:
        for arrival in (*self._unproven.values(), *self._proven.values()):
            arrival.socket.close()
        self._unproven.clear()
        self._proven.clear()
        self._socket.close()
        os.close(self.wake)
        os.close(self._bell)

    # The thread

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                if now >= self._full_until:
                    poll.register(self._socket, select.POLLIN)
                for descriptor in self._unproven:
                    poll.register(descriptor, select.POLLIN)
                for arrival in self._proven.values():
                    poll.register(arrival.socket, select.POLLRDHUP)
                patience = self._patience(now)
            ready = {descriptor for descriptor, _ in poll.poll(patience)}
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            with self._lock:
                self._drop_closed(ready)
                for descriptor in ready & self._unproven.keys():
                    self._advance(descriptor)
                if self._socket.fileno() in ready:
                    self._accept()
                self._drop(self._strangers.overdue(time.monotonic()))

    def _patience(self, now: float) -> float | None:
        """Milliseconds until there is something to do, whatever happens. None: nothing."""
        due = self._strangers.next_due
        if self._full_until > now:
            due = self._full_until if due is None else min(due, self._full_until)
        return None if due is None else 1000 * max(0.0, due - now) + 1

    def _accept(self) -> None:
        """Take in some of the connections that wait."""
        now = time.monotonic()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError:
                self._drop(self._strangers.make_room())
                self._full_until = now + FULL_SECONDS
                return
            descriptor = connection.fileno()
            try:
                self._unproven[descriptor] = Arrival(connection, self.token)
            except OSError:
                connection.close()
                continue
            self._drop(self._strangers.enter(descriptor, descriptor, now))

    def _drop(self, strangers: list[int]) -> None:
        for descriptor in strangers:
            self._unproven.pop(descriptor).socket.close()

    def _advance(self, descriptor: int) -> None:
        arrival = self._unproven[descriptor]
        try:
            if not arrival.advance():
                return
            self._forget(descriptor)
            self._place(arrival)
        except (OSError, WireError):
            self._forget(descriptor)
            arrival.socket.close()

    def _forget(self, descriptor: int) -> None:
        self._unproven.pop(descriptor, None)
        self._strangers.settle(descriptor)

    def _place(self, arrival: Arrival) -> None:
        """A proven connection: answered, kept, or of no use. A newer one of the same peer replaces the older."""
        hello = arrival.hello
        assert hello is not None
        if hello.is_probe:
            arrival.welcome()
        if hello.is_probe or hello.generation < self._oldest:
            arrival.socket.close()
            return
        older = self._proven.pop((hello.generation, hello.source), None)
        if older is not None:
            older.socket.close()
        self._proven[hello.generation, hello.source] = arrival
        os.eventfd_write(self.wake, 1)

    def _drop_closed(self, ready: set[int]) -> None:
        """Of the kept connections those whose other end is gone."""
        for key in [key for key, arrival in self._proven.items() if arrival.socket.fileno() in ready]:
            if self._proven[key].is_closed:
                self._proven.pop(key).socket.close()


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


_open_listeners: weakref.WeakSet[PeerListener] = weakref.WeakSet()


def _close_in_child() -> None:
    for listener in tuple(_open_listeners):
        listener.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
