"""Full meshes over TCP: every rank of a generation connected to every other, both ends proven to hold the job's token.

Rank i connects to the lower ranks and accepts from the higher ones, all in one poll loop: a peer that is slow, silent
or a stranger delays nobody else. The moving of bytes is in `tcp_mesh`, the listening socket in `tcp_listener`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time

from shoal.errors import Aborted, PeerLost, Refused, WireError
from shoal.transport.tcp_listener import Arrival, Hello, PeerListener
from shoal.transport.tcp_mesh import CLOSED, TcpMesh
from shoal.values import Address, Generation
from shoal.wire import handshake

__all__ = ["PeerListener", "TcpMesh", "connect_mesh"]


def connect_mesh(listener: PeerListener, generation: Generation, rank: int, token: str, timeout: float) -> TcpMesh:
    """Connect to all other ranks. `PeerLost` names one that is gone or did not come within `timeout` seconds."""
    joining = _Joining(listener, generation, rank, token)
    try:
        joining.run(timeout)
        return TcpMesh(rank, joining.connected)
    except BaseException:
        joining.close()
        raise


class _Departure:
    """A connection to a lower rank that is being made: its nonce comes in, our hello and proof go out, its proof in."""

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
            raise Refused(f"rank {self.hello.target} at {self._address} could not prove that it holds the job's token")
        return True


class _Joining:
    """One rank's way into the mesh of one generation."""

    def __init__(self, listener: PeerListener, generation: Generation, rank: int, token: str) -> None:
        self.connected: dict[int, socket.socket] = {}
        self._listener = listener
        self._generation = generation
        self._rank = rank
        self._token = token
        self._poll = select.poll()
        self._departures: dict[int, _Departure] = {}  # by descriptor
        self._ranks: dict[int, int] = {}  # descriptor of a finished connection -> rank

    def run(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._poll.register(self._listener.wake, select.POLLIN)
        self._poll.register(self._listener.socket, select.POLLIN)
        for descriptor in self._listener.arrivals:
            self._poll.register(descriptor, select.POLLIN)
        for arrival in self._listener.take(self._generation.number):
            self._place(arrival)
        for peer in range(self._rank):
            self._depart(peer)
        while len(self.connected) < self._generation.size - 1:
            self._raise_given_up()
            left = deadline - time.monotonic()
            if left <= 0:
                self._raise_late(timeout)
            for descriptor, happened in self._poll.poll(left * 1000):
                self._handle(descriptor, happened)

    def close(self) -> None:
        for connection in self.connected.values():
            connection.close()
        for departure in self._departures.values():
            departure.socket.close()

    def _handle(self, descriptor: int, happened: int) -> None:
        if descriptor == self._listener.wake:
            self._raise_given_up()
            os.eventfd_read(descriptor)  # meant for an older generation
        elif descriptor == self._listener.socket.fileno():
            self._accept()
        elif descriptor in self._departures:
            self._advance_departure(descriptor)
        elif descriptor in self._listener.arrivals:
            self._advance_arrival(descriptor)
        elif descriptor in self._ranks and happened & CLOSED:
            raise self._lost(self._ranks[descriptor], "it left before everybody was connected")

    def _accept(self) -> None:
        arrival = self._listener.accept()
        if arrival is not None:
            self._poll.register(arrival.socket, select.POLLIN)
        dropped = self._listener.drop_oldest()
        if dropped is not None:
            self._poll.unregister(dropped)

    def _advance_arrival(self, descriptor: int) -> None:
        arrival = self._listener.arrivals[descriptor]
        try:
            if not arrival.advance():
                return
        except (OSError, WireError):
            self._poll.unregister(descriptor)
            self._listener.arrivals.pop(descriptor).socket.close()
            return
        self._poll.unregister(descriptor)
        self._place(self._listener.arrivals.pop(descriptor))

    def _place(self, arrival: Arrival) -> None:
        """A proven connection: ours, for later, or of no use."""
        hello = arrival.hello
        assert hello is not None
        if hello.generation > self._generation.number:
            self._listener.keep(arrival, hello)
            return
        expected = hello.target == self._rank and self._rank < hello.source < self._generation.size
        if hello.generation != self._generation.number or not expected:
            arrival.socket.close()
            return
        try:
            connection = arrival.welcome()
        except OSError:
            arrival.socket.close()  # it gave up; if it still lives, it connects again
            return
        self._finish(hello.source, connection)

    def _depart(self, peer: int) -> None:
        hello = Hello(generation=self._generation.number, source=self._rank, target=peer)
        try:
            departure = _Departure(self._generation.members[peer].address, hello, self._token)
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from None
        self._departures[departure.socket.fileno()] = departure
        self._poll.register(departure.socket, departure.mask)

    def _advance_departure(self, descriptor: int) -> None:
        departure = self._departures[descriptor]
        try:
            done = departure.advance()
        except OSError as error:
            raise self._lost(departure.hello.target, error.strerror or str(error)) from None
        self._poll.modify(descriptor, departure.mask)
        if done:
            del self._departures[descriptor]
            self._poll.unregister(descriptor)
            self._finish(departure.hello.target, departure.socket)

    def _finish(self, peer: int, connection: socket.socket) -> None:
        older = self.connected.pop(peer, None)
        if older is not None:
            self._poll.unregister(older)
            del self._ranks[older.fileno()]
            older.close()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connected[peer] = connection
        self._ranks[connection.fileno()] = peer
        self._poll.register(connection, select.POLLRDHUP)

    def _lost(self, peer: int, why: str) -> PeerLost:
        member = self._generation.members[peer]
        return PeerLost(
            f"rank {peer} (worker {member.worker} at {member.address}) cannot be reached "
            f"for generation {self._generation.number}: {why}",
            peer=peer,
        )

    def _raise_given_up(self) -> None:
        reason = self._listener.reason_against(self._generation.number)
        if reason is not None:
            raise Aborted(reason)

    def _raise_late(self, timeout: float) -> None:
        missing = [peer for peer in range(self._generation.size) if peer != self._rank and peer not in self.connected]
        raise self._lost(missing[0], f"ranks {missing} did not connect within {timeout:g} s")
