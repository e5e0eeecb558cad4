"""Asks several workers at once whether they can be reached, outside of any generation."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping

from shoal.errors import Refused
from shoal.transport.tcp.tcp_handshake import OutgoingConnection, PeerHello
from shoal.values import Address

_PROBE = PeerHello(generation=0, source=0, target=0)


def reachable(addresses: Mapping[int, Address], token: str, timeout: float) -> set[int]:
    """The numbers of the workers that answer and prove their token within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    poll = select.poll()
    waiting: dict[int, tuple[int, OutgoingConnection]] = {}  # by descriptor
    answered: set[int] = set()
    try:
        for worker, address in addresses.items():
            try:
                departure = OutgoingConnection(address, _PROBE, token)
            except OSError:
                continue
            waiting[departure.endpoint.fileno()] = (worker, departure)
            poll.register(departure.endpoint, departure.mask)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                worker, departure = waiting[descriptor]
                try:
                    is_done = departure.advance()
                except (OSError, Refused):
                    is_done = True
                else:
                    answered |= {worker} if is_done else set()
                if is_done:
                    poll.unregister(descriptor)
                    waiting.pop(descriptor)[1].endpoint.close()
                else:
                    poll.modify(descriptor, departure.mask)
    finally:
        for _, departure in waiting.values():
            departure.endpoint.close()
    return answered
