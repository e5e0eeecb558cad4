"""Meshes over TCP: a rank of a generation connected with all others or with some, both ends proven to hold the token.

Rank i connects to its lower peers and the higher ones connect to it, all in one poll loop: a slow or silent peer, or a
stranger, delays nobody else. A mesh that begins with some peers makes its other connections when it needs them
(`later`). A rank keeps trying to reach a peer until time is up. The error then names all missing
peers, and tells peers that do not answer from peers that answer but do not connect. Not here: moving bytes
(`tcp_mesh`), the listening socket (`tcp_listener`), the handshake (`tcp_handshake`), which peers answer (`answering`).
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection

from shoal.errors import Aborted, PeerLost, Refused
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.introduction import Introduction
from shoal.transport.mesh.stream_ending import StreamEnding, pack_ending, unpack_ending
from shoal.transport.tcp.answering import Answers
from shoal.transport.tcp.later import LONGEST_RETRY, RETRY_SECONDS, LaterConnections
from shoal.transport.tcp.tcp_handshake import OutgoingConnection, PeerHello
from shoal.transport.tcp.tcp_listener import PeerListener
from shoal.transport.tcp.tcp_mesh import CLOSED, TcpMesh
from shoal.transport.tcp.tcp_stream import Lines
from shoal.values import Generation, Unreached

__all__ = ["PeerListener", "TcpMesh", "connect_all", "connect_mesh"]

KNOCK_SHARE = 0.25  # of the time limit; after it this rank knocks at higher ranks that have not connected


def connect_mesh(
    listener: PeerListener,
    generation: Generation,
    rank: int,
    timeout: float,
    *,
    peers: Collection[int] | None = None,
) -> TcpMesh:
    """Connect to all other ranks. `PeerLost` names a rank that left, or all that did not connect in `timeout` seconds.

    When one rank gives up, no other rank can complete its mesh. The others give up too, as soon as each knows that all
    its peers answer, or when their own time is up.

    `peers`: connect to these alone, and to others when something is sent there; a peer has to name this rank too. The
    mesh then uses the listener until it is closed.
    """
    connections = connect_all(listener, generation, rank, timeout, peers=peers)
    workers = {member.rank: member.worker for member in generation.members}
    lines = Lines(listener.silence_limit, listener.faults, workers)
    is_full = len(connections) == generation.size - 1
    return TcpMesh(rank, connections, lines, None if is_full else LaterConnections(listener, generation, rank, timeout))


def connect_all(
    listener: PeerListener,
    generation: Generation,
    rank: int,
    timeout: float,
    *,
    peers: Collection[int] | None = None,
) -> dict[int, Endpoint]:
    """Like `connect_mesh`, but returns the connections by rank."""
    others = frozenset(range(generation.size)) if peers is None else frozenset(peers)
    joining = _Joining(listener, generation, rank, others - {rank})
    try:
        joining.run(timeout)
    except BaseException as error:
        joining.give_up(cut=isinstance(error, PeerLost))
        raise
    finally:
        joining.answers.close()
    return joining.connected


class _Joining:
    """One rank's way into the mesh of one generation."""

    def __init__(self, listener: PeerListener, generation: Generation, rank: int, peers: frozenset[int]) -> None:
        self.connected: dict[int, Endpoint] = {}
        self._listener = listener
        self._generation = generation
        self._rank = rank
        self._peers = peers
        self._poll = select.poll()
        self._departures: dict[int, OutgoingConnection] = {}  # by descriptor
        self._ranks: dict[int, int] = {}  # descriptor of a finished connection -> rank
        self._due: dict[int, float] = {}  # when to try each lower rank that is not connected, by time.monotonic
        self._tries: dict[int, int] = {}  # failed attempts, by rank
        self._troubles: dict[int, str] = {}  # why the last attempt failed, by rank
        self._doom: PeerLost | None = None  # why this mesh will never be complete: a rank gave up
        self.answers = Answers(self._poll, {member.rank: member.address for member in generation.members})

    def run(self, timeout: float) -> None:
        started = time.monotonic()
        deadline = started + timeout
        self._poll.register(self._listener.wake, select.POLLIN)
        self._due = {peer: 0.0 for peer in sorted(self._peers) if peer < self._rank}
        self._take_arrivals()
        while self._doom is not None or len(self.connected) < len(self._peers):
            if self._doom is not None and not self.answers.without(self._unconnected()):
                raise self._doom
            self._raise_given_up()
            now = time.monotonic()
            if now >= deadline:
                self._raise_late(timeout)
            for peer in [peer for peer, due in self._due.items() if due <= now]:
                self._depart(peer)
            wake = min([deadline, *self._due.values()])
            if self._doom is not None or now >= started + KNOCK_SHARE * timeout:
                # Knock at ranks that are no peers too: the coordinator needs every rank that does not answer to
                # decide who goes on.
                awaited = [peer for peer in self._unconnected() if not self._is_called(peer) and not self._is_cut(peer)]
                wake = min(wake, self.answers.knock(awaited, now))
            else:
                wake = min(wake, started + KNOCK_SHARE * timeout)
            for descriptor, happened in self._poll.poll(max(0.0, wake - now) * 1000):
                self._handle(descriptor, happened)

    def _missing(self) -> list[int]:
        return [peer for peer in sorted(self._peers) if peer not in self.connected]

    def _unconnected(self) -> list[int]:
        """All ranks without a connection, peers and others."""
        return [peer for peer in range(self._generation.size) if peer != self._rank and peer not in self.connected]

    def _is_called(self, peer: int) -> bool:
        """This rank connects to that peer, and sees by itself whether it answers."""
        return peer in self._peers and peer < self._rank

    def give_up(self, *, cut: bool) -> None:
        """Close everything. Tell connected peers that this rank has given up, so that they do not take it for dead."""
        for connection in self.connected.values():
            with contextlib.suppress(OSError):
                connection.send(pack_ending(StreamEnding(announced=True, cut=cut)))
            connection.close()
        for departure in self._departures.values():
            departure.endpoint.close()

    def _handle(self, descriptor: int, happened: int) -> None:
        if descriptor == self._listener.wake:
            os.eventfd_read(descriptor)
            self._raise_given_up()
            self._take_arrivals()
        elif descriptor in self._departures:
            self._advance(descriptor)
        elif descriptor in self._ranks and happened & CLOSED:
            self._left(self._ranks[descriptor])
        else:
            self.answers.handle(descriptor)

    def _take_arrivals(self) -> None:
        for arrival in self._listener.take(self._generation.number, self._peers):
            self._place(arrival)

    def _place(self, arrival: Introduction) -> None:
        """Welcome a proven connection of this generation, or close it."""
        hello = PeerHello.of(arrival.handshake.purpose)
        is_expected = hello.target == self._rank and hello.source > self._rank and hello.source in self._peers
        if not is_expected or self._is_cut(hello.source):
            arrival.endpoint.close()
            return
        try:
            connection = arrival.welcome()
        except OSError:
            arrival.endpoint.close()  # the peer gave up; if it lives, it connects again
            return
        self._finish(hello.source, connection)

    def _depart(self, peer: int) -> None:
        del self._due[peer]
        if self._is_cut(peer):
            self._try_again(peer, "the link is cut, on purpose")
            return
        hello = PeerHello(generation=self._generation.number, source=self._rank, target=peer)
        try:
            departure = OutgoingConnection(self._generation.members[peer].address, hello, self._listener.token)
        except OSError as error:
            self._try_again(peer, error.strerror or str(error))
            return
        self._departures[departure.endpoint.fileno()] = departure
        self._poll.register(departure.endpoint, departure.mask)

    def _advance(self, descriptor: int) -> None:
        departure = self._departures[descriptor]
        peer = departure.hello.target
        try:
            is_done = departure.advance()
        except OSError as error:
            self._end(descriptor).close()
            self.answers.failed(peer, error)
            self._try_again(peer, error.strerror or str(error))
            return
        except Refused as refusal:
            raise Refused(f"rank {peer}: {refusal}") from None
        self.answers.open.add(peer)
        if is_done:
            self._finish(peer, self._end(descriptor))
        else:
            self._poll.modify(descriptor, departure.mask)

    def _end(self, descriptor: int) -> Endpoint:
        self._poll.unregister(descriptor)
        return self._departures.pop(descriptor).endpoint

    def _try_again(self, peer: int, trouble: str) -> None:
        self._troubles[peer] = trouble
        tries = self._tries[peer] = self._tries.get(peer, 0) + 1
        self._due[peer] = time.monotonic() + min(LONGEST_RETRY, RETRY_SECONDS * tries)

    def _is_cut(self, peer: int) -> bool:
        return self._listener.faults.is_cut(self._generation.members[peer].worker)

    def _finish(self, peer: int, connection: Endpoint) -> None:
        older = self.connected.pop(peer, None)
        if older is not None:
            if self._ranks.pop(older.fileno(), None) is not None:
                self._poll.unregister(older)
            older.close()
        self.connected[peer] = connection
        self._ranks[connection.fileno()] = peer
        self._poll.register(connection, select.POLLRDHUP)

    def _left(self, peer: int) -> None:
        """A connected peer has left. A peer that gave up because of another one is not to be blamed."""
        connection = self.connected[peer]
        try:
            last_words = connection.peek(4096)
        except OSError:
            last_words = b""
        if not unpack_ending(last_words).announced:
            raise PeerLost(self._about(peer, "it left before everybody was connected"), peer=peer)
        # The cause may lie between two other ranks. This rank still has to find out whether its own peers answer.
        del self._ranks[connection.fileno()]
        self._poll.unregister(connection)
        if self._doom is None:
            text = f"rank {peer} gave up generation {self._generation.number} before all were connected"
            self._doom = PeerLost(text)

    def _about(self, peer: int, why: str) -> str:
        member = self._generation.members[peer]
        return (
            f"rank {peer} (worker {member.worker} at {member.address}) cannot be reached "
            f"for generation {self._generation.number}: {why}"
        )

    def _raise_given_up(self) -> None:
        reason = self._listener.reason_against(self._generation.number)
        if reason is not None:
            raise Aborted(reason)

    def _raise_late(self, timeout: float) -> None:
        missing = self._missing()
        unreachable = tuple(peer for peer in self._unconnected() if peer not in self.answers.open)
        late = tuple(peer for peer in missing if peer in self.answers.open and self._doom is None)
        in_order = (*unreachable, *missing)
        named = next((peer for peer in in_order if peer in self._troubles), in_order[0])
        if named in self._troubles:
            why = f"{self._troubles[named]}, for {timeout:g} s"
            if len(unreachable) > 1:
                why += f"; ranks {list(unreachable)} cannot be reached"
        else:
            why = f"ranks {missing} did not connect within {timeout:g} s"
        raise PeerLost(self._about(named, why), peer=named, unreached=Unreached(unreachable, late))
