"""The one listening socket of a worker process, and the thread that always serves it.

A connector has to prove that it holds the job's token, and names a generation and two ranks. Until then it costs one
socket for a limited time, and nobody waits for it (`connection.door`). A proven connection is kept until this process
gets to its generation, or the other end closes it. A proven probe is answered and closed: it only asks whether this
process can be reached. Not here: the handshake (`connection`, `tcp_handshake`), the connecting side and the mesh of a
generation (`tcp`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Container

from shoal.errors import AddressUnavailable, UsageError, WireError
from shoal.transport.connection import listening
from shoal.transport.connection.door import Door
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.introduction import Introduction
from shoal.transport.mesh.faults import LinkFaults
from shoal.transport.tcp import tcp_handshake
from shoal.transport.tcp.tcp_handshake import PeerHello
from shoal.values import Address

BACKLOG = 512  # connections that may wait to be accepted


class PeerListener:
    """Opened once per process; the other workers are told its address. Every generation's mesh uses it."""

    def __init__(self, host: str, token: str) -> None:
        if not token and not Address(host, 0).is_loopback:
            raise UsageError(f"refusing to listen on {host} without a token; use 127.0.0.1 or give the job a token")
        if listening.is_wildcard(host):
            raise UsageError(f"peers cannot connect to {host}; listen on an address of this machine that they reach")
        listener = _listen(host)
        self.address = Address(host=host, port=listener.getsockname()[1])
        self.token = token
        self.silence_limit = 5.0  # seconds; a link that loses all packets for longer counts as cut
        self.on_interception: Callable[[str], None] = lambda _: None  # called in `_thread`, with the source host
        self.faults = LinkFaults()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the thread that connects a mesh
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the listener's own thread
        self._lock = threading.Lock()  # guards the fields below
        self._door: Door[Introduction] = Door(listener, self._take_in, self._drop)
        self._unproven: dict[int, Introduction] = {}  # by descriptor
        self._proven: dict[tuple[int, int], Introduction] = {}  # by generation and rank of the connector
        self._oldest = 0  # generations below this one are over for this process
        self._open = 0  # generation whose connections are welcomed at once; 0: there is no such generation
        self._late: list[tuple[PeerHello, Endpoint]] = []  # welcomed, and not asked for yet
        self._interceptors: list[str] = []  # hosts to report
        self._given_up: tuple[int, str] = (0, "")  # newest generation not to wait for, and why
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
        """Why connecting in this generation is useless; None: it is not useless."""
        newest, reason = self._given_up
        return reason if generation <= newest else None

    def take(self, generation: int, peers: Container[int]) -> list[Introduction]:
        """The kept connections of these peers in this generation. Those of older ones are closed, now and later."""
        with self._lock:
            self._oldest = max(self._oldest, generation)
            self._close_to(below=self._oldest)
            for key in [key for key in self._proven if key[0] < self._oldest]:
                self._proven.pop(key).endpoint.close()
            expected = [key for key in sorted(self._proven) if key[0] == generation and key[1] in peers]
            taken = [self._proven.pop(key) for key in expected]
            os.eventfd_write(self._bell, 1)
            return taken

    def open_to(self, generation: int) -> None:
        """The mesh of this generation has its first connections: welcome all further ones as they come."""
        with self._lock:
            if generation < self._oldest:
                return
            self._open = generation
            for key in [key for key in self._proven if key[0] == generation]:
                self._welcome(self._proven.pop(key))
            os.eventfd_write(self._bell, 1)

    def late(self, generation: int) -> list[tuple[PeerHello, Endpoint]]:
        """The connections that were welcomed since the last call, if this generation is still the open one."""
        with self._lock:
            if self._closed or generation != self._open:
                return []
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wake)
            taken, self._late = self._late, []
            return taken

    def close_to(self, generation: int) -> None:
        """The mesh of this generation is closed: whoever connects for it from now on is refused."""
        with self._lock:
            self._oldest = max(self._oldest, generation + 1)
            self._close_to(below=self._oldest)

    def _close_to(self, *, below: int) -> None:
        if self._open < below:
            self._open = 0
            for _, endpoint in self._late:
                endpoint.close()
            self._late.clear()

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
        """After a fork: close this copy of the descriptors. The thread and the connections are the parent's."""
        self._lock = threading.Lock()  # the parent's thread may have held it
        self._closed = True
        self._release()

    def _release(self) -> None:
        for arrival in (*self._unproven.values(), *self._proven.values()):
            arrival.endpoint.close()
        for _, endpoint in self._late:
            endpoint.close()
        self._late.clear()
        self._unproven.clear()
        self._proven.clear()
        self._door.close()
        os.close(self.wake)
        os.close(self._bell)

    # The thread

    def _serve(self) -> None:
        self._door.prepare()
        while True:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                if not self._door.is_full(now):
                    poll.register(self._door, select.POLLIN)
                for descriptor in self._unproven:
                    poll.register(descriptor, select.POLLIN)
                for arrival in self._proven.values():
                    poll.register(arrival.endpoint, select.POLLRDHUP)
                due = self._door.next_due(now)
            ready = {descriptor for descriptor, _ in poll.poll(None if due is None else 1000 * (due - now) + 1)}
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            with self._lock:
                self._drop_closed(ready)
                for descriptor in ready & self._unproven.keys():
                    self._advance(descriptor)
                if self._door.fileno() in ready:
                    self._door.accept(time.monotonic())
                self._door.sweep(time.monotonic())
                interceptors, self._interceptors = self._interceptors, []
            for interceptor in interceptors:  # without the lock, since the callback takes other locks
                self.on_interception(interceptor)

    def _take_in(self, connection: socket.socket) -> Introduction:
        connection.setblocking(False)
        arrival = Introduction(connection, tcp_handshake.arrival(self.token))
        arrival.open()
        self._unproven[arrival.endpoint.fileno()] = arrival
        return arrival

    def _drop(self, arrival: Introduction) -> None:
        """Close a stranger that proved nothing in time, proved something wrong, or has to make room."""
        self._forget(arrival)
        arrival.endpoint.close()

    def _advance(self, descriptor: int) -> None:
        arrival = self._unproven[descriptor]
        try:
            if arrival.advance():
                self._forget(arrival)
                self._place(arrival)
            elif arrival.was_refused:
                if self._door.is_news(arrival.interceptor):
                    self._interceptors.append(arrival.interceptor)
                self._drop(arrival)
        except (OSError, WireError):
            self._drop(arrival)

    def _forget(self, arrival: Introduction) -> None:
        self._unproven.pop(arrival.endpoint.fileno(), None)
        self._door.settle(arrival)

    def _place(self, arrival: Introduction) -> None:
        """Answer, keep or close a proven connection. A peer's newer connection replaces its older one."""
        hello = PeerHello.of(arrival.handshake.purpose)
        if hello.is_probe:
            arrival.welcome()
        if hello.is_probe or hello.generation < self._oldest:
            arrival.endpoint.close()
            return
        if hello.generation == self._open:
            self._welcome(arrival)
            return
        older = self._proven.pop((hello.generation, hello.source), None)
        if older is not None:
            older.endpoint.close()
        self._proven[hello.generation, hello.source] = arrival
        os.eventfd_write(self.wake, 1)

    def _welcome(self, arrival: Introduction) -> None:
        """A connection that the open generation's mesh has not asked for, and will find when it needs it."""
        try:
            self._late.append((PeerHello.of(arrival.handshake.purpose), arrival.welcome()))
        except OSError:
            arrival.endpoint.close()
        os.eventfd_write(self.wake, 1)

    def _drop_closed(self, ready: set[int]) -> None:
        """Close the kept connections whose other end is gone."""
        for key in [key for key, arrival in self._proven.items() if arrival.endpoint.fileno() in ready]:
            if _is_closed(self._proven[key].endpoint):
                self._proven.pop(key).endpoint.close()


def _is_closed(endpoint: Endpoint) -> bool:
    """Whether the other end has closed a proven connection, on which it sends nothing before it is welcomed."""
    try:
        return not endpoint.peek(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _listen(host: str) -> socket.socket:
    try:
        return listening.listen(Address(host, 0), BACKLOG)
    except OSError as error:
        raise AddressUnavailable(f"cannot listen for peers on {host}: {error.strerror}; check --address") from None


_open_listeners: weakref.WeakSet[PeerListener] = weakref.WeakSet()


def _close_in_child() -> None:
    for listener in tuple(_open_listeners):
        listener.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
