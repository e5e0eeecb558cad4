"""A carrier for GPU tensors, beside the group's exchanger for host memory.

The exchanger for host memory compares the ranks' operations and notices lost ranks, on one machine or on several.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.collectives import texts
from shoal.collectives.carriers.carried_exchanger import Carried, find_lost
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed
from shoal.collectives.carriers.gpu_facts import facts_of, own_facts
from shoal.collectives.carriers.nccl import NcclCarrier
from shoal.collectives.carriers.torch_carrier import CarrierPlace
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.gpu.carrier_choice import NCCL, choose_carrier
from shoal.collectives.gpu.gpu_way import GpuTerms
from shoal.errors import UsageError, WorkersDisagree
from shoal.transport.memory.neighbours import Exchange
from shoal.wire.frames import FrameKind


def nccl_beside(exchanger: Exchanger, device: torch.device, terms: GpuTerms) -> BesideExchanger | None:
    """All ranks call it, each with its GPU. None: their tensors go through host memory."""
    if terms.choice is not None and terms.choice.carrier != NCCL:
        return None
    exchange = exchange_by(exchanger)
    ranks = facts_of(exchange(own_facts(device)))  # a script may have put its tensors on another GPU than the rank's
    if choose_carrier(ranks, machines=terms.machines, kept=terms.kept).carrier != NCCL:
        return None
    place = CarrierPlace(exchanger.rank, exchanger.size, terms.address)
    try:
        return BesideExchanger(NcclCarrier(exchange, place, device, exchanger.check), exchanger)
    except CarrierFailed as failure:
        find_lost(exchanger.check)  # if a rank is gone, that is the cause
        raise UsageError(texts.nccl_fails(exchanger.size, failure)) from None


class BesideExchanger(Carried):
    """Owns the carrier, but not the exchanger."""

    idle_seconds = 0.0  # ranks wait for each other in the exchanger, which counts that time

    def __init__(self, carrier: Carrier, exchanger: Exchanger) -> None:
        super().__init__(carrier, exchanger.rank, exchanger.size)
        self._exchanger = exchanger

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted with the operations
        return self._carried

    def missing(self) -> list[int]:
        return self._exchanger.missing()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:  # noqa: ARG002  the exchanger tells the others
        self._carrier.abort()

    def close(self) -> None:
        self._carrier.close()

    def _agree(self, operation: Operation, counts: Sequence[int]) -> None:
        try:
            self._compare(operation, counts)
        except WorkersDisagree as error:
            self._exchanger.abort(str(error))  # ranks that see no difference would wait for this rank
            raise

    def _compare(self, operation: Operation, counts: Sequence[int]) -> None:
        own = torch.tensor(counts, dtype=torch.int64)
        told = [torch.empty_like(own) for _ in range(self.size)]
        self._exchanger.all_gather(operation, told, own)
        for rank, theirs in enumerate(told):
            if not _fits(operation.kind, (self.rank, counts), (rank, theirs.tolist())):
                raise WorkersDisagree(
                    f"{operation.words}: rank {self.rank} has tensors of {list(counts)} elements and rank {rank} of "
                    f"{theirs.tolist()}"
                )

    def check(self) -> None:
        self._exchanger.check()


def _fits(kind: FrameKind, ours: tuple[int, Sequence[int]], theirs: tuple[int, Sequence[int]]) -> bool:
    """Whether two ranks' counts agree; each side is a rank and its counts.

    In all-to-all, the first half of the counts goes to each rank, the second half comes from each.
    """
    (rank, own), (peer, other) = ours, theirs
    if kind is not FrameKind.ALL_TO_ALL:
        return list(own) == list(other)
    size = len(own) // 2
    return own[peer] == other[size + rank] and own[size + peer] == other[rank]


def exchange_by(exchanger: Exchanger) -> Exchange:
    """An exchange of bytes among all ranks, made from an exchanger's all-gather."""

    def gather(own: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        told = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        exchanger.all_gather(
            Operation(FrameKind.ALL_GATHER, 0, "who has which GPU", torch.uint8, sum(sizes)), told, own
        )
        return told

    def exchange(data: bytes) -> list[bytes]:
        length = torch.frombuffer(bytearray(len(data).to_bytes(8, "little")), dtype=torch.uint8)
        sizes = [int.from_bytes(bytes(told.tolist()), "little") for told in gather(length, [8] * exchanger.size)]
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return [bytes(told.tolist()) for told in gather(own, sizes)]

    return exchange
