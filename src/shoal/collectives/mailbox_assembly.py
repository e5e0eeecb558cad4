"""Mailboxes as a group needs them: memory to the ranks of this machine, TCP to the others."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from shoal.collectives.mailbox import Mailbox
from shoal.collectives.mailbox_lane import Lane
from shoal.collectives.mailbox_memory import Exchange, MemoryLane
from shoal.collectives.mailbox_tcp import TcpLane
from shoal.transport.neighbours import Neighbourhood


def open_mailbox(
    exchange: Exchange,
    rank: int,
    neighbourhood: Neighbourhood,
    connections: Mapping[int, socket.socket],
    names: Mapping[int, str] | None = None,
) -> Mailbox:
    """Called by all ranks of a group. `connections`: one connected socket for each rank of another machine, for the
    mailbox alone; they belong to it from now on. `names` by rank are for errors."""
    lanes: list[Lane] = []
    try:
        memory = MemoryLane.form(exchange, rank, neighbourhood)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    if memory is not None:
        lanes.append(memory)
    if connections:
        lanes.append(TcpLane(connections))
    return Mailbox(rank, sum(map(len, neighbourhood.hosts)), lanes, names)
