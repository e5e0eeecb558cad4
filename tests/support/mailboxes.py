"""Mailboxes over each lane, between threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.collectives.mailbox.lane import Lane
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.mailbox.memory_lane import Exchange, MemoryLane
from shoal.collectives.mailbox.tcp_lane import TcpLane
from shoal.transport.connection.endpoint import Endpoint, plain
from shoal.transport.memory.neighbours import Neighbourhood
from support.collectives import PATIENCE, succeed
from support.encryption import through_tls

# memory: long messages are read where they lie; staged: they go through the rings; mixed: two machines of two ranks.
LANES = ("memory", "staged", "tcp", "tls", "mixed")


class Meeting:
    """Gives every thread's bytes to all of them."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=PATIENCE)
        self._said = [b""] * size

    def exchange_of(self, rank: int) -> Exchange:
        def exchange(data: bytes) -> list[bytes]:
            self._said[rank] = data
            self._barrier.wait()
            heard = list(self._said)
            self._barrier.wait()
            return heard

        return exchange


def hosts_of(lane: str, size: int) -> tuple[tuple[int, ...], ...]:
    if lane in ("tcp", "tls"):
        return tuple((rank,) for rank in range(size))
    if lane == "mixed":
        return tuple(tuple(range(start, min(start + 2, size))) for start in range(0, size, 2))
    return (tuple(range(size)),)


def connections_of(lane: str, size: int) -> list[dict[int, Endpoint]]:
    """By rank: a connection for each rank of another machine."""
    hosts = hosts_of(lane, size)
    made: list[dict[int, Endpoint]] = [{} for _ in range(size)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for high in range(size):
            for low in range(high):
                if not any(low in host and high in host for host in hosts):
                    ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
                    joined = through_tls(*ends) if lane == "tls" else (plain(ends[0]), plain(ends[1]))
                    made[high][low], made[low][high] = joined
    return made


def open_mailbox(
    lane: str, size: int, rank: int, exchange: Exchange, connections: dict[int, Endpoint], limit: float = 5.0
) -> Mailbox:
    """Called for all ranks at once. `limit`: seconds that a peer may be stopped or out of reach."""
    neighbourhood = Neighbourhood(hosts_of(lane, size), None, reads_memory=lane != "staged", is_native=False)
    memory = MemoryLane.form(exchange, rank, neighbourhood)
    lanes: list[Lane] = []
    if memory is not None:
        memory.stopped_limit = limit
        lanes.append(memory)
    if connections:
        lanes.append(TcpLane(connections, limit))
    return Mailbox(rank, size, lanes)


@contextmanager
def mailboxes(lane: str, size: int) -> Iterator[list[Mailbox]]:
    meeting, connections = Meeting(size), connections_of(lane, size)
    made = succeed(
        *(
            lambda rank=rank: open_mailbox(lane, size, rank, meeting.exchange_of(rank), connections[rank])
            for rank in range(size)
        )
    )
    try:
        yield made
    finally:
        for mailbox in made:
            mailbox.close()
