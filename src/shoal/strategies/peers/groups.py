"""Groups of a worker and their parts: an exchanger over a carrier, a stand-in for newcomers, a brake for slow links."""

from __future__ import annotations

import time
from typing import NoReturn

from shoal.collectives import texts
from shoal.collectives.carriers.carried_exchanger import CarriedExchanger, blame
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed
from shoal.collectives.carriers.gloo import GlooCarrier
from shoal.collectives.carriers.mpi import MpiCarrier
from shoal.collectives.carriers.nccl import NcclCarrier, required_gpu
from shoal.collectives.carriers.torch_carrier import CarrierPlace
from shoal.collectives.exchanger import Operation
from shoal.collectives.operations import Alone, Make, Operations, Work
from shoal.errors import ShoalError, UsageError
from shoal.transport.mesh.faults import LinkFaults
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.mesh.mesh_exchange import exchange_over
from shoal.values import Generation, Member

SLICE_SECONDS = 0.005  # between two looks at what a slow link may carry


def make_exchanger(name: str, mesh: Mesh, generation: int, host: str) -> CarriedExchanger:
    """All ranks of a mesh call this function. The exchanger owns the mesh, which is closed if this fails.

    `host` is an address of this rank that the others can reach. Raises `PeerLost` if a rank is gone.
    """
    try:
        try:
            carrier = _carrier(name, mesh, generation, host)
        except CarrierFailed as failure:
            blame(mesh.check, name, failure)
    except BaseException as error:
        mesh.abort(f"{name} did not come about: {error}")
        mesh.close()
        raise
    return CarriedExchanger(carrier, mesh, generation)


def _carrier(name: str, mesh: Mesh, generation: int, host: str) -> Carrier:
    exchange = exchange_over(mesh, generation)
    if name == "gloo":
        return GlooCarrier(exchange, mesh.rank, mesh.size, host)
    if name == "nccl":
        place = CarrierPlace(mesh.rank, mesh.size, host)
        return NcclCarrier(exchange, place, required_gpu(exchange), mesh.check)
    if name == "mpi":
        return MpiCarrier(exchange, mesh.rank, mesh.size, mesh.check)
    raise UsageError(texts.no_carrier(name))


class StandInGroup(Operations):
    def __init__(self, rank: int) -> None:
        """As if this worker came in after `rank` others."""
        super().__init__(None, None, 0)
        self.rank = rank
        self.size = rank + 1

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _start(self, _sequence: str, make: Make, _work: Work, _alone: Alone) -> NoReturn:
        raise ShoalError(f"{make(0).label!r} was begun by a worker that is in no generation yet")


def stand_in_generation(me: Member, current: Generation | None) -> Generation:
    """The current generation as if this worker were its last member; number 0, which no generation has."""
    others = () if current is None else current.members
    return Generation(
        number=0,
        members=(*others, me),
        schedule="auto" if current is None else current.schedule,
        codec="identity" if current is None else current.codec,
        reason="waiting to be let in",
    )


class Brake:
    """Delays every operation of a group where links are slow on purpose."""

    def __init__(self, faults: LinkFaults, generation: Generation, rank: int) -> None:
        self._faults = faults
        self._workers = [member.worker for member in generation.members if member.rank != rank]

    def __call__(self, operation: Operation) -> None:
        if not self._faults.is_set or not self._workers:
            return
        share = 2 * operation.elements * operation.dtype.itemsize // (len(self._workers) + 1)
        for worker in self._workers:
            left = share
            while left > 0:
                left -= self._faults.allowance(worker, left)
                if left > 0:
                    time.sleep(SLICE_SECONDS)
