"""Gives every rank's bytes to every rank over a mesh: for facts that ranks need before there is a group.

They go up a binary tree to rank 0 and come back down, so that a rank exchanges two messages with each of three peers,
however many ranks there are.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import ByNumber
from shoal.errors import WireError
from shoal.transport.memory.neighbours import Exchange
from shoal.transport.mesh.first_peers import children_of, parent_of
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import HEADER_BYTES, FrameHeader, FrameKind, ReductionCode, pack, unpack

MOST_BYTES = 1 << 26  # that all ranks may send in one exchange
LABEL = "introduction"

_decoder = msgspec.msgpack.Decoder(ByNumber[Annotated[bytes, Meta(max_length=MOST_BYTES)]])


def exchange_over(mesh: Mesh, generation: int) -> Exchange:
    """For the thread that drives the mesh."""
    parent, children = parent_of(mesh.rank), children_of(mesh.rank, mesh.size)
    number = -1

    def exchange(data: bytes) -> list[bytes]:
        nonlocal number
        number += 1
        said = {mesh.rank: data}
        for child in children:
            said |= _receive(mesh, child, generation, number)
        if parent is not None:
            _send(mesh, (parent,), generation, number, said)
            said = _receive(mesh, parent, generation, number)
        _send(mesh, children, generation, number, said)
        mesh.drain()
        if sorted(said) != list(range(mesh.size)):
            raise WireError(f"ranks {sorted(said)} introduced themselves, where there are {mesh.size} ranks")
        return [said[rank] for rank in range(mesh.size)]

    return exchange


def _send(mesh: Mesh, peers: tuple[int, ...], generation: int, number: int, said: dict[int, bytes]) -> None:
    data = msgspec.msgpack.encode(said)
    header = pack(_header(generation, number, len(data)))
    for peer in peers:
        mesh.post(peer, header, memoryview(data))


def _receive(mesh: Mesh, peer: int, generation: int, number: int) -> dict[int, bytes]:
    buffer = bytearray(HEADER_BYTES)
    mesh.receive_into(peer, memoryview(buffer))
    found = unpack(buffer, generation=generation)
    if found != _header(generation, number, found.payload) or found.payload > MOST_BYTES:
        raise WireError(f"rank {peer} sent {found.label!r} of {found.payload} bytes where it should introduce itself")
    data = bytearray(found.payload)
    mesh.receive_into(peer, memoryview(data))
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"rank {peer} passed on introductions that cannot be read: {error}") from None


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
