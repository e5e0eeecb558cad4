"""Run as a worker of a job: `network_training`, with a GPU and an NCCL that are not there.

Every worker says that it has a GPU of its own, its floating point tensors count as that GPU's, and gloo stands in for
NCCL. Worker 3 is killed inside the library, in its tenth operation, while the others are in it too.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

import shoal
from shoal.collectives import flat_tensors, operations
from shoal.collectives.carriers import beside
from shoal.collectives.carriers.carrier import Work
from shoal.collectives.carriers.gloo import GlooCarrier
from shoal.collectives.carriers.torch_carrier import CarrierPlace
from shoal.collectives.gpu import gpu_way
from shoal.collectives.gpu.carrier_choice import RankGpu
from shoal.collectives.group import Reduction
from shoal.strategies.peers import direct_group
from shoal.transport.memory.neighbours import Exchange
from support.network_training import train

WORKER = os.environ.get("SHOAL_WORKER", "")
VICTIM, LAST_CALL = "3", 10


class StandIn(GlooCarrier):
    name = "NCCL"
    takes_gpu = True

    def __init__(
        self, exchange: Exchange, place: CarrierPlace, device: torch.device, check: Callable[[], None]
    ) -> None:
        super().__init__(exchange, place.rank, place.size, place.address)
        self._calls = 0

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        self._calls += 1
        if WORKER == VICTIM and self._calls == LAST_CALL:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().all_reduce(tensor, reduction)


class Moment:
    device = torch.device("cpu")


def moment_of(tensors: Sequence[torch.Tensor], label: str) -> Moment | None:
    return Moment() if any(tensor.is_floating_point() for tensor in tensors) else None


@contextmanager
def copies_after(moment: Moment) -> Iterator[None]:
    yield


def own_facts(device: torch.device | None) -> bytes:
    return msgspec.msgpack.encode(RankGpu(socket.gethostname(), f"GPU-{WORKER}", "2.28.9", is_open=True))


def install() -> None:
    is_flat = flat_tensors.is_flat
    flat_tensors.is_flat = lambda tensor: is_flat(tensor) and not tensor.is_floating_point()
    operations.moment_of = moment_of  # type: ignore[assignment]  # stand-ins, from here on
    gpu_way.copies_after = copies_after  # type: ignore[assignment]
    direct_group.own_facts = beside.own_facts = own_facts
    beside.NcclCarrier = StandIn  # type: ignore[assignment,misc]


if __name__ == "__main__":
    install()
    shoal.main(train)
