"""A worker's connection as a server sees it: who it is, what it has said once and refers to, which memory it shares."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import torch

from shoal.errors import ServerRefused
from shoal.parameters.byte_views import tensor_over
from shoal.parameters.connection import Connection
from shoal.transport.arena import Offer, PeerArena
from shoal.transport.neighbours import shares_network
from shoal.wire.parameter_messages import Hello, KeyList, Refusal
from shoal.wire.tables import PushId

KEPT_LISTS = 16  # of keys; each version of the map has one


class WorkerLink:
    def __init__(self, connection: Connection, hello: Hello) -> None:
        self.connection = connection
        self.worker = hello.worker
        self.missed: set[PushId] = set()  # pushes of which something was not taken: they must be staged again
        self.told_offer = b""  # of this server's memory
        self._lists: OrderedDict[bytes, None] = OrderedDict()  # digests of key lists that it has sent
        self._peer_arena = _open(hello.arena)
        self.arena: torch.Tensor | None = None  # its memory, to be read; None: it is on another machine
        if self._peer_arena is not None:
            self.arena = tensor_over(self._peer_arena.memory)

    def learn(self, note: KeyList) -> None:
        """Whether the digest is right is the caller's to check."""
        self._lists[note.digest] = None
        while len(self._lists) > KEPT_LISTS:
            self._lists.popitem(last=False)

    def knows(self, keys: bytes) -> None:
        if keys not in self._lists:
            raise ServerRefused(
                f"a list of keys with digest {keys.hex()[:32]} is not known here: send it first", kind="bad-request"
            )

    def close(self) -> None:
        """Memory that is staged stays as long as it is staged."""
        self.arena = None
        if self._peer_arena is not None:
            self._peer_arena.close()
            self._peer_arena = None


def refuse(link: WorkerLink, refusal: ServerRefused, request: int) -> None:
    """`request` 0: it had no number."""
    link.connection.send(Refusal(kind=refusal.kind or "bad-request", reason=str(refusal), request=request))


def _open(offer: bytes) -> PeerArena | None:
    if not offer:
        return None
    try:
        found = msgspec.msgpack.decode(offer, type=Offer)
    except msgspec.MsgspecError:
        raise ServerRefused("the offer of shared memory is not one of ours", kind="bad-request") from None
    return PeerArena.open(found) if shares_network(found.process) else None
