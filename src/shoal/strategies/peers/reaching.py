"""Who can reach whom: this worker's address for its peers, and the members that a worker which was left out can reach.

The worker that was left out tells the coordinator which members it reaches, and again whenever that changes, so that it
is let in once it would not break the generation.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count

import msgspec

from shoal.errors import Refused
from shoal.membership.client import CoordinatorClient
from shoal.transport.tcp.probe import reachable
from shoal.transport.tcp.tcp_listener import PeerListener
from shoal.values import Address, Generation, Unreached
from shoal.wire.messages import Ready

PROBE_SECONDS = 1.0  # for all members to answer, and before they are asked again
PROBES = 10  # after so many, it says that it waits even if some do not answer: these may be gone for good
LONGEST_PAUSE = 30.0  # seconds, to which pauses grow from then on: members are not to be asked all the time


def tell_from_outside(
    client: CoordinatorClient,
    listener: PeerListener,
    worker: int,
    notice: Ready,
    may_go: Callable[[], bool],
) -> None:
    """Say that this worker waits to be let in, with those that it cannot reach. Returns when it reaches all, when
    there is news, or when it need not wait any longer."""
    generation = client.left_out_by
    if generation is None:
        client.tell(notice)
        return
    others = {member.worker: member.address for member in generation.members if member.worker != worker}
    said: tuple[int, ...] | None = None
    pause = PROBE_SECONDS
    for number in count(1):
        answered = reachable(others, listener.token, PROBE_SECONDS)
        missing = tuple(sorted(other for other in others if other not in answered or listener.faults.is_cut(other)))
        is_over = bool(missing) and (may_go() or client.wait_for_news(generation, pause))
        if missing != said and (is_over or not missing or number >= PROBES):
            said = missing
            client.tell(msgspec.structs.replace(notice, unreachable=missing))
        if is_over or not missing:
            return
        if number >= PROBES:
            pause = min(LONGEST_PAUSE, 2 * pause)


def by_worker(unreached: Unreached, generation: Generation) -> Unreached:
    """The same members, by worker number instead of rank."""
    return Unreached(
        unreachable=tuple(sorted(generation.members[rank].worker for rank in unreached.unreachable)),
        late=tuple(sorted(generation.members[rank].worker for rank in unreached.late)),
    )


def local_host(coordinator: Address) -> str:
    """The address of this machine that the coordinator, and so the peers, can reach. No packet is sent."""
    family = socket.AF_INET6 if ":" in coordinator.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((coordinator.host, coordinator.port))
        except OSError as error:
            raise Refused(f"the coordinator's address {coordinator} cannot be reached: {error.strerror}") from None
        return str(probe.getsockname()[0])
