"""The interface of a transport: ordered byte streams between the ranks of one generation.

A mesh belongs to one generation and is driven by one thread (the group's communication thread); only `abort` may be
called from another. Posted frames go out while the caller receives. A payload must not change before its receiver's
answer proves that it arrived, or before `drain` returns. The first read of a frame asks for its whole header: the mark
of a leaving peer is shorter, so it is never taken for data. Implementations: `tcp`, `in_process`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

STALL_SECONDS = 0.5  # of waiting, after which `on_stall` is called, and again after as long


class Mesh(ABC):
    """One rank's end of all its streams. Failures raise `PeerLost` (naming the rank) or `Aborted`."""

    rank: int
    size: int
    bytes_sent: int  # payload and headers posted so far, to all peers
    idle_seconds: float  # time spent blocked while no byte came in or went out: a peer was not here yet

    # Called in the mesh's thread while it waits in vain, with the first unread bytes (at most a header's length) from
    # each peer that it does not wait for. It may post, and it may raise: ranks in different operations could wait for
    # each other forever. Several users may share a mesh in turns; each sets this before its turn.
    on_stall: Callable[[Mapping[int, bytes]], None] | None = None

    @abstractmethod
    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        """Queue header and payloads for `peer` and return; as much as fits goes out at once."""

    @abstractmethod
    def receive_into(self, peer: int, buffer: memoryview) -> None:
        """Fill the whole buffer with the next bytes from `peer`; posted frames go on leaving meanwhile."""

    @abstractmethod
    def drain(self) -> None:
        """Return when everything posted has been handed to the transport."""

    @abstractmethod
    def check(self) -> None:
        """Raise if a peer was lost or this end was aborted. Never waits: for a thread that waits for something else."""

    @abstractmethod
    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """From any thread: every call in progress and every later one raises `Aborted`; peers see the loss.

        `blamed`: the lost rank that makes this one give up, if something other than the mesh noticed the loss. Peers
        then name it too; without `blamed` they name this rank.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. Safe to call twice."""
