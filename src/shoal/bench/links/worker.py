"""One process of `shoal bench links`: a mesh with the others, measured once.

Reads the token, prints its address, reads everybody's address with its own rank, and if it is the first prints what was
found. Imports no torch.
"""

from __future__ import annotations

import os
import sys

import msgspec

from shoal.links.measure import measure
from shoal.transport.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation, Member

PATIENCE = 30.0  # seconds for all processes to connect


class Table(msgspec.Struct):
    """Who takes part."""

    rank: int  # of the process that reads this
    addresses: list[Address]  # by rank


def main() -> None:
    token = sys.stdin.readline().strip()
    listener = PeerListener("127.0.0.1", token)
    try:
        print(msgspec.json.encode(listener.address).decode(), flush=True)
        table = msgspec.json.decode(sys.stdin.readline(), type=Table)
        members = tuple(Member(rank, rank, "here", os.getpid(), each) for rank, each in enumerate(table.addresses))
        generation = Generation(1, members, "auto", "identity", "shoal bench links")
        mesh = connect_mesh(listener, generation, table.rank, token, PATIENCE)
    finally:
        listener.close()
    try:
        matrix = measure(mesh)
    finally:
        mesh.close()
    if table.rank == 0:
        print(msgspec.json.encode(matrix).decode(), flush=True)


if __name__ == "__main__":
    main()
