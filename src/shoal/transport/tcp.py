"""Full meshes over TCP: every rank of a generation connected to every other, both ends proven to hold the job's token.

Rank i connects to the lower ranks and is connected to by the higher ones, all in one poll loop: a peer that is slow,
silent or a stranger delays nobody else. One that cannot be reached yet is tried again until time is up. The moving of
bytes is in `tcp_mesh`, the listening socket in `tcp_listener`, what both ends say in `tcp_handshake`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from shoal.errors import Aborted, PeerLost, Refused
from shoal.transport.ending import Ending, pack_ending, unpack_ending
from shoal.transport.tcp_handshake import Arrival, Departure, Hello
from shoal.transport.tcp_listener import PeerListener
from shoal.transport.tcp_mesh import CLOSED, Links, TcpMesh
from shoal.values import Generation

__all__ = ["PeerListener", "TcpMesh", "connect_all", "connect_mesh"]

RETRY_SECONDS = 0.05  # before the next try to reach a peer, growing with every try
LONGEST_RETRY = 0.5


def connect_mesh(listener: PeerListener, generation: Generation, rank: int, token: str, timeout: float) -> TcpMesh:
    """Connect to all other ranks. `PeerLost` names one that left, or could not be reached within `timeout` seconds."""
    connections = connect_all(listener, generation, rank, token, timeout)
    workers = {member.rank: member.worker for member in generation.members}
    return TcpMesh(rank, connections, Links(listener.silence_limit, listener.faults, workers))


def connect_all(
    listener: PeerListener, generation: Generation, rank: int, token: str, timeout: float
) -> dict[int, socket.socket]:
    """The same, as one connected socket per other rank."""
    joining = _Joining(listener, generation, rank, token)
    try:
        joining.run(timeout)
    except BaseException:
        joining.give_up()
        raise
    return joining.connected


class _Joining:
    """One rank's way into the mesh of one generation."""

    def __init__(self, listener: PeerListener, generation: Generation, rank: int, token: str) -> None:
        self.connected: dict[int, socket.socket] = {}
        self._listener = listener
        self._generation = generation
        self._rank = rank
        self._token = token
        self._poll = select.poll()
        self._departures: dict[int, Departure] = {}  # by descriptor
        self._ranks: dict[int, int] = {}  # descriptor of a finished connection -> rank
        self._due: dict[int, float] = {}  # lower ranks to be tried, by time.monotonic
        self._tries: dict[int, int] = {}  # that failed, by rank
        self._troubles: dict[int, str] = {}  # of the last such try

    def run(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._poll.register(self._listener.wake, select.POLLIN)
        self._due = dict.fromkeys(range(self._rank), 0.0)
        self._take_arrivals()
        while len(self.connected) < self._generation.size - 1:
            self._raise_given_up()
            now = time.monotonic()
            if now >= deadline:
                self._raise_late(timeout)
            for peer in [peer for peer, due in self._due.items() if due <= now]:
                self._depart(peer)
            wake = min([deadline, *self._due.values()])
            for descriptor, happened in self._poll.poll(max(0.0, wake - now) * 1000):
                self._handle(descriptor, happened)

    def give_up(self) -> None:
        """Close everything. Those who are connected are told that this is no death."""
        for connection in self.connected.values():
            with contextlib.suppress(OSError):
                connection.send(pack_ending(Ending(announced=True)))
            connection.close()
        for departure in self._departures.values():
            departure.socket.close()

    def _handle(self, descriptor: int, happened: int) -> None:
        if descriptor == self._listener.wake:
            os.eventfd_read(descriptor)
            self._raise_given_up()
            self._take_arrivals()
        elif descriptor in self._departures:
            self._advance(descriptor)
        elif descriptor in self._ranks and happened & CLOSED:
            self._raise_left(self._ranks[descriptor])

    def _take_arrivals(self) -> None:
        for arrival in self._listener.take(self._generation.number):
            self._place(arrival)

    def _place(self, arrival: Arrival) -> None:
        """A proven connection of this generation."""
        hello = arrival.hello
        assert hello is not None
        is_expected = hello.target == self._rank and self._rank < hello.source < self._generation.size
        if not is_expected or self._is_cut(hello.source):
            arrival.socket.close()
            return
        try:
            connection = arrival.welcome()
        except OSError:
            arrival.socket.close()  # it gave up; if it still lives, it connects again
            return
        self._finish(hello.source, connection)

    def _depart(self, peer: int) -> None:
        del self._due[peer]
        if self._is_cut(peer):
            self._try_again(peer, "the link is cut, on purpose")
            return
        hello = Hello(generation=self._generation.number, source=self._rank, target=peer)
        try:
            departure = Departure(self._generation.members[peer].address, hello, self._token)
        except OSError as error:
            self._try_again(peer, error.strerror or str(error))
            return
        self._departures[departure.socket.fileno()] = departure
        self._poll.register(departure.socket, departure.mask)

    def _advance(self, descriptor: int) -> None:
        departure = self._departures[descriptor]
        try:
            is_done = departure.advance()
        except OSError as error:
            self._end(descriptor).close()
            self._try_again(departure.hello.target, error.strerror or str(error))
            return
        except Refused as refusal:
            raise Refused(f"rank {departure.hello.target}: {refusal}") from None
        if is_done:
            self._finish(departure.hello.target, self._end(descriptor))
        else:
            self._poll.modify(descriptor, departure.mask)

    def _end(self, descriptor: int) -> socket.socket:
        self._poll.unregister(descriptor)
        return self._departures.pop(descriptor).socket

    def _try_again(self, peer: int, trouble: str) -> None:
        self._troubles[peer] = trouble
        tries = self._tries[peer] = self._tries.get(peer, 0) + 1
        self._due[peer] = time.monotonic() + min(LONGEST_RETRY, RETRY_SECONDS * tries)

    def _is_cut(self, peer: int) -> bool:
        return self._listener.faults.is_cut(self._generation.members[peer].worker)

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

    def _raise_left(self, peer: int) -> None:
        """It was connected and is not any more. One that gave up because of another is not the one to name."""
        try:
            last_words = self.connected[peer].recv(4096, socket.MSG_PEEK)
        except OSError:
            last_words = b""
        if unpack_ending(last_words).announced:
            raise PeerLost(f"rank {peer} gave up generation {self._generation.number} before all were connected")
        raise self._lost(peer, "it left before everybody was connected")

    def _raise_given_up(self) -> None:
        reason = self._listener.reason_against(self._generation.number)
        if reason is not None:
            raise Aborted(reason)

    def _raise_late(self, timeout: float) -> None:
        missing = [peer for peer in range(self._generation.size) if peer != self._rank and peer not in self.connected]
        for peer in missing:
            if peer in self._troubles:
                raise self._lost(peer, f"{self._troubles[peer]}, for {timeout:g} s")
        raise self._lost(missing[0], f"ranks {missing} did not connect within {timeout:g} s")
