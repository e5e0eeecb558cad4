"""A socket that listens for TCP connections."""

from __future__ import annotations

import ipaddress
import socket

from shoal.values import Address


def listen(address: Address, backlog: int) -> socket.socket:
    """Port 0 takes any free port. `OSError`: this process cannot listen there."""
    family, kind, protocol, _, place = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def is_wildcard(host: str) -> bool:
    """Whether `host` means all addresses of this machine; nobody can connect to such a host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
