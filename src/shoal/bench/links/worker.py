"""One process of `shoal bench links`: joins a mesh with the others and measures it once. Imports no torch.

It gets the token, answers its address, and gets the addresses of all processes and its rank. Rank 0 answers the link
matrix.
"""

from __future__ import annotations

import os

import msgspec

from shoal.bench.harness import OrderLine
from shoal.links.measure import measure
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation, Member

PATIENCE = 30.0  # seconds for all processes to connect


def main() -> None:
    orders = OrderLine()
    token = orders.next()
    listener = PeerListener("127.0.0.1", token)
    try:
        orders.answer(msgspec.to_builtins(listener.address))
        crew = orders.next()
        addresses = msgspec.convert(crew["addresses"], list[Address])
        members = tuple(Member(rank, rank, "here", os.getpid(), each) for rank, each in enumerate(addresses))
        generation = Generation(1, members, "auto", "identity", "shoal bench links")
        mesh = connect_mesh(listener, generation, crew["rank"], PATIENCE)
    finally:
        listener.close()
    try:
        matrix = measure(mesh)
    finally:
        mesh.close()
    if crew["rank"] == 0:
        orders.answer(msgspec.to_builtins(matrix))


if __name__ == "__main__":
    main()
