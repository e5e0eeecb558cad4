"""Making an engine from a carrier's name."""

from __future__ import annotations

from shoal.collectives import texts
from shoal.collectives.carriers.carried_engine import CarriedEngine, blame
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed
from shoal.collectives.carriers.gloo import GlooCarrier
from shoal.collectives.carriers.mpi import MpiCarrier
from shoal.collectives.carriers.nccl import NcclCarrier
from shoal.errors import UsageError
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.mesh.mesh_exchange import exchange_over


def make_engine(name: str, mesh: Mesh, generation: int, host: str) -> CarriedEngine:
    """All ranks of a mesh call it. The engine owns the mesh from now on; the mesh is closed if this fails.

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
    return CarriedEngine(carrier, mesh, generation)


def _carrier(name: str, mesh: Mesh, generation: int, host: str) -> Carrier:
    exchange = exchange_over(mesh, generation)
    if name == "gloo":
        return GlooCarrier(exchange, mesh.rank, mesh.size, host)
    if name == "nccl":
        return NcclCarrier(exchange, mesh.rank, mesh.size, host)
    if name == "mpi":
        return MpiCarrier(exchange, mesh.rank, mesh.size, mesh.check)
    raise UsageError(texts.no_carrier(name))
