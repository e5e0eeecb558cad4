"""How much of what is to be sent lies in the kernel, where the other end is near.

Where answers come within half a millisecond the kernel is told to keep little: as much as is under way in that time,
and what fits a core's cache, so that it is still there when it is copied again. Between two namespaces 100 MB there and
back take 44 ms so, and 95 ms with the kernel's own choice (up to 4 MB). Far away it stays the kernel's: there more has
to be under way.
"""

from __future__ import annotations

import socket
import struct

from shoal.transport.connection.endpoint import Endpoint

NEAR_SECONDS = 0.5e-3
NEAR_SEND_BUFFER = 512 * 1024  # bytes; the kernel doubles it for its own needs
_ROUND_TRIP = struct.Struct("=68xI")  # microseconds, in the kernel's tcp_info


def keep_in_cache(connection: Endpoint) -> None:
    """For a connection over which something has gone already, so that the kernel knows how far it is."""
    if _round_trip(connection) <= NEAR_SECONDS:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_SEND_BUFFER)


def _round_trip(connection: Endpoint) -> float:
    """Seconds, as the kernel has measured so far."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return float("inf")  # nothing is known
    (microseconds,) = _ROUND_TRIP.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size))
    return 1e-6 * float(microseconds)
