"""Connections whose packets vanish: kernel options that notice them, and what the kernel knows of a connection.

A pulled cable or a cut route closes nothing. The kernel probes an idle connection (keepalive), but not one with bytes
on their way. Its own limit for those (TCP_USER_TIMEOUT) would also end the connection to a peer that is alive but does
not read for a while, because it computes; so `unanswered` looks at what was acknowledged instead.
"""

from __future__ import annotations

import math
import socket
import struct
from typing import NamedTuple

from shoal.transport.connection.endpoint import Endpoint

_INFO = struct.Struct("=2xBB20xI28xI")
UNACKNOWLEDGED_MS = 30_000
MOST_PROBES = 100  # the kernel takes at most 127


class _Info(NamedTuple):
    """What the kernel says of a connection."""

    repeated: int  # times in a row that the oldest unacknowledged packet was sent again
    probes: int  # keepalive and window probes without an answer
    in_flight: int  # packets that are not acknowledged yet
    quiet: int  # milliseconds since the other machine last acknowledged anything


def watch(connection: socket.socket | Endpoint, limit: float) -> None:
    """Have an idle connection fail with ETIMEDOUT when the other machine has not answered for about `limit` seconds."""
    interval = max(1, math.ceil(limit / MOST_PROBES))  # seconds
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, math.ceil(limit / interval) - 1))


def watch_closely(connection: socket.socket | Endpoint, limit: float) -> None:
    """Like `watch`, and also while bytes are on their way; only for connections whose other end always reads."""
    watch(connection, limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(limit * 1000)))


def end_when_unacknowledged(connection: socket.socket) -> None:
    """Have the connection fail when its bytes are not acknowledged for `UNACKNOWLEDGED_MS`."""
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def unanswered(connection: socket.socket | Endpoint) -> float:
    """For how many seconds the other machine has owed an answer; 0 when it owes none."""
    info = _info(connection)
    if info is None:
        return 0.0  # closed; the next read tells why
    return info.quiet / 1000 if info.probes or (info.repeated and info.in_flight) else 0.0


def unacknowledged(connection: socket.socket | Endpoint) -> float:
    """The same for a connection that was just shut, which a reachable machine acknowledges within a round trip."""
    info = _info(connection)
    if info is None:
        return 0.0
    return info.quiet / 1000 if info.probes or info.in_flight else 0.0


def _info(connection: socket.socket | Endpoint) -> _Info | None:
    """None: the connection is closed."""
    try:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return None
    return _Info(*_INFO.unpack(data))
