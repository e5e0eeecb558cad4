"""A worker's connection as a server sees it: the worker, the key lists it has sent, and the memory that it shares."""

from __future__ import annotations

import msgspec
import torch

from shoal.errors import ServerRefused
from shoal.parameters.blocks.byte_views import tensor_over
from shoal.parameters.connections.connection import Connection
from shoal.parameters.server.space.job_state import JobState
from shoal.transport.memory.arena import Offer, PeerArena
from shoal.transport.memory.neighbours import shares_network
from shoal.wire.parameter_messages import KeyList, Moved, Refusal, ServerHello
from shoal.wire.tables import PushId

MOST_LISTS = 65_536  # key lists whose digests are kept; each version of the map has one
MOST_MISSED = 1024  # pushes with a part that was not taken
MOST_MAPPED = 1 << 44  # bytes of address space for the memory that the workers of one job share with a server


class WorkerLine:
    def __init__(self, connection: Connection, hello: ServerHello, mapped: int = 0) -> None:
        """`mapped`: bytes that other workers of the job share with this server."""
        self.connection = connection
        self.worker = hello.worker
        self.is_replaced = False  # the worker stages on a newer connection: what still arrives here is ignored
        self.missed: set[PushId] = set()  # pushes with a part that was not taken: they must be staged again
        self._lists: set[bytes] = set()  # digests of the key lists that the worker has sent
        self._peer_arena = _open(hello.arena, MOST_MAPPED - mapped)
        self.arena: torch.Tensor | None = None  # the worker's memory, only read; None: it cannot be mapped here
        if self._peer_arena is not None:
            self.arena = tensor_over(self._peer_arena.memory)

    @property
    def mapped(self) -> int:
        """Bytes of the worker's memory that are mapped here."""
        return 0 if self.arena is None else len(self.arena)

    def learn(self, note: KeyList) -> None:
        """Remember a key list. The caller has checked its digest."""
        if len(self._lists) >= MOST_LISTS:
            raise ServerRefused(f"{MOST_LISTS} lists of keys on one connection are enough", kind="bad-request")
        self._lists.add(note.digest)

    def miss(self, push: PushId) -> None:
        """A part of the push was not taken."""
        if len(self.missed) >= MOST_MISSED:
            raise ServerRefused(f"{MOST_MISSED} pushes are staged by another map and never ended", kind="bad-request")
        self.missed.add(push)

    def knows(self, keys: bytes) -> None:
        if keys not in self._lists:
            raise ServerRefused(
                f"a list of keys with digest {keys.hex()[:32]} is not known here: send it first", kind="bad-request"
            )

    def close(self) -> None:
        """Let go of the worker's memory; pushes that are staged in it keep it until they are dropped."""
        self.arena = None
        if self._peer_arena is not None:
            self._peer_arena.close()
            self._peer_arena = None


def send_elsewhere(line: WorkerLine, request: int, state: JobState) -> None:
    """The request goes by another map than the one that has begun here: answer with the newest map."""
    assert state.map is not None, "workers come after the map"
    line.connection.send(Moved(request=request, map=state.map))


def refuse(line: WorkerLine, refusal: ServerRefused, request: int) -> None:
    """`request` 0: what is refused had no number."""
    line.connection.send(Refusal(kind=refusal.kind or "bad-request", reason=str(refusal), request=request))


def _open(offer: bytes, most: int) -> PeerArena | None:
    if not offer:
        return None
    try:
        found = msgspec.msgpack.decode(offer, type=Offer)
    except msgspec.MsgspecError:
        raise ServerRefused("the offer of shared memory is not one of ours", kind="bad-request") from None
    return PeerArena.open(found) if found.size <= most and shares_network(found.process) else None
