"""What the gloo and NCCL carriers share: a torch process group, used one operation at a time.

Not here: how the process group is made and how it is woken (`gloo`, `nccl`).
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch.distributed import (
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)
from torch.distributed import Work as TorchWork
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]  # it is there, unannounced

from shoal.bounds import Name, Port
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed, Work
from shoal.collectives.group import Reduction
from shoal.transport.memory.neighbours import Exchange

FORM_SECONDS = 10.0  # for all ranks to connect
OPERATIONS: dict[Reduction, Any] = {
    Reduction.SUM: ReduceOp.SUM,
    Reduction.MAX: ReduceOp.MAX,
    Reduction.MIN: ReduceOp.MIN,
    Reduction.PRODUCT: ReduceOp.PRODUCT,
    Reduction.AND: ReduceOp.BAND,
    Reduction.OR: ReduceOp.BOR,
    Reduction.XOR: ReduceOp.BXOR,
}

IsDone = Callable[[TorchWork, float], bool]


@dataclass(frozen=True)
class CarrierPlace:
    """A rank's place in the group that a carrier serves."""

    rank: int
    size: int
    address: str  # of this rank, which the others can reach


class TorchCarrier(Carrier):
    """Subclasses make the process group and say how it is woken."""

    def __init__(self, backend: Any, rank: int) -> None:  # torch's own types leave out most of a backend
        self._backend: Any = backend  # None when closed
        self._rank = rank

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        options = AllreduceOptions()
        options.reduceOp = OPERATIONS[reduction]
        return self._works([self._group.allreduce([tensor], options)])

    def reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: Sequence[int], reduction: Reduction
    ) -> Work:
        if len(set(counts)) == 1:
            options = ReduceScatterOptions()
            options.reduceOp = OPERATIONS[reduction]
            return self._works([self._group._reduce_scatter_base(output, whole, options)])
        parts = torch.split(whole, list(counts))
        works = [self._reduce(part, reduction, rank) for rank, part in enumerate(parts) if len(part)]
        return self._works(works, copy=(output, parts[self._rank]))

    def all_gather(self, whole: torch.Tensor, counts: Sequence[int], tensor: torch.Tensor) -> Work:
        if len(set(counts)) == 1:
            return self._works([self._group._allgather_base(whole, tensor)])
        parts = torch.split(whole, list(counts))
        parts[self._rank].copy_(tensor)
        return self._works([self._spread(part, source) for source, part in enumerate(parts) if len(part)])

    def all_to_all(
        self, received: torch.Tensor, received_counts: Sequence[int], sent: torch.Tensor, sent_counts: Sequence[int]
    ) -> Work:
        return self._works([self._group.alltoall_base(received, sent, list(received_counts), list(sent_counts))])

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        return self._works([self._spread(tensor, source)])

    def close(self) -> None:
        self._backend = None  # its destructor closes connections and joins threads

    @abstractmethod
    def _is_done(self, work: TorchWork, seconds: float) -> bool:
        """Wait up to `seconds`. Raises `CarrierFailed` if the work has failed."""

    def _works(self, works: Sequence[TorchWork], copy: tuple[torch.Tensor, torch.Tensor] | None = None) -> Work:
        return _Works(works, self._is_done, copy)

    @property
    def _group(self) -> Any:
        if self._backend is None:
            raise CarrierFailed("the process group is closed")
        return self._backend

    def _reduce(self, tensor: torch.Tensor, reduction: Reduction, target: int) -> TorchWork:
        options = ReduceOptions()
        options.reduceOp, options.rootRank = OPERATIONS[reduction], target
        work: TorchWork = self._group.reduce([tensor], options)
        return work

    def _spread(self, tensor: torch.Tensor, source: int) -> TorchWork:
        options = BroadcastOptions()
        options.rootRank = source
        work: TorchWork = self._group.broadcast([tensor], options)
        return work


class _Works(Work):
    """Complete when all of torch's works are."""

    def __init__(
        self, works: Sequence[TorchWork], is_done: IsDone, copy: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        """`copy`: a target and a source, copied once all works are complete."""
        self._works = deque(works)
        self._is_done = is_done
        self._copy = copy

    def wait(self, seconds: float) -> bool:
        while self._works:
            if not self._is_done(self._works[0], seconds):
                return False
            self._works.popleft()
        if self._copy is not None:
            self._copy[0].copy_(self._copy[1])
        return True


class MeetingPoint:
    """A store that rank 0 keeps on its own address while a process group forms."""

    def __init__(self, exchange: Exchange, rank: int, host: str) -> None:
        """Called by all ranks. `host`: an address of this rank that the others can reach."""
        listening = socket.create_server((host, 0), family=_family(host)) if rank == 0 else None
        own = listening.getsockname()[:2] if listening is not None else ("", 0)
        place, port = msgspec.msgpack.decode(exchange(msgspec.msgpack.encode(own))[0], type=tuple[Name, Port])
        self.store = TCPStore(
            place,
            port,
            is_master=rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=FORM_SECONDS),
            master_listen_fd=None if listening is None else listening.detach(),
        )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
