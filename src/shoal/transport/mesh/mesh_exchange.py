"""Gives every rank's bytes to every rank over a mesh: for facts that ranks need before there is a group."""

from __future__ import annotations

from shoal.errors import WireError
from shoal.transport.memory.neighbours import Exchange
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import HEADER_BYTES, FrameHeader, FrameKind, ReductionCode, pack, unpack

MOST_BYTES = 1 << 20  # that one rank may send in one exchange
LABEL = "introduction"


def exchange_over(mesh: Mesh, generation: int) -> Exchange:
    """For the thread that drives the mesh."""
    number = -1

    def exchange(data: bytes) -> list[bytes]:
        nonlocal number
        number += 1
        header = pack(_header(generation, number, len(data)))
        for peer in range(mesh.size):
            if peer != mesh.rank:
                mesh.post(peer, header, memoryview(data))
        said = [data if peer == mesh.rank else _receive(mesh, peer, generation, number) for peer in range(mesh.size)]
        mesh.drain()
        return said

    return exchange


def _receive(mesh: Mesh, peer: int, generation: int, number: int) -> bytes:
    buffer = bytearray(HEADER_BYTES)
    mesh.receive_into(peer, memoryview(buffer))
    found = unpack(buffer, generation=generation)
    if found != _header(generation, number, found.payload) or found.payload > MOST_BYTES:
        raise WireError(f"rank {peer} sent {found.label!r} of {found.payload} bytes where it should introduce itself")
    data = bytearray(found.payload)
    mesh.receive_into(peer, memoryview(data))
    return bytes(data)


def _header(generation: int, number: int, size: int) -> FrameHeader:
    return FrameHeader(
        kind=FrameKind.ALL_GATHER,
        reduction=ReductionCode.NONE,
        codec=0,
        dtype=0,
        generation=generation,
        sequence=number,
        transfer=0,
        elements=0,
        payload=size,
        label=LABEL,
    )
