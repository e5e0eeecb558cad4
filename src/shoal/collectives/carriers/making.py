"""From a carrier's name to an engine over it."""

from __future__ import annotations

from shoal.collectives.carriers.carried_engine import CarriedEngine, blame
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed
from shoal.collectives.carriers.gloo import GlooCarrier
from shoal.collectives.carriers.mpi import MpiCarrier
from shoal.collectives.carriers.nccl import NcclCarrier
from shoal.errors import UsageError
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.mesh.mesh_exchange import exchange_over


def make_engine(name: str, mesh: Mesh, generation: int, host: str) -> CarriedEngine:
    """Called by all ranks of a mesh, which belongs to the engine from now on, and is closed if this fails.

    `host` is an address of this rank that the others can reach. `PeerLost` where somebody is gone meanwhile.
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
    return CarriedEngine(carrier, mesh, generation)


def _carrier(name: str, mesh: Mesh, generation: int, host: str) -> Carrier:
    exchange = exchange_over(mesh, generation)
    if name == "gloo":
        return GlooCarrier(exchange, mesh.rank, mesh.size, host)
    if name == "nccl":
        return NcclCarrier(exchange, mesh.rank, mesh.size, host)
    if name == "mpi":
        return MpiCarrier(exchange, mesh.rank, mesh.size, mesh.check)
    raise UsageError(f"there is no carrier {name!r}; there is gloo, nccl and mpi")
