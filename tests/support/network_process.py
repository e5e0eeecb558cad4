"""Run as a program: one rank that exchanges bytes with all others over and over, until it loses one of them.

Arguments: own host, rank, bytes of one message, seconds of silence; and `ring`, if it is to connect and to exchange
bytes with its two neighbours only. It prints the port it listens on, reads all
addresses, and prints what happens: "connected", "exchanged", then "lost RANK TEXT" and "unreached RANKS; late RANKS"
with all that it misses. On SIGUSR1 it stops sending and only receives.
"""

from __future__ import annotations

import signal
import sys
import time

from shoal.errors import PeerLost
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_mesh
from shoal.values import Address, Generation, Member

TOKEN = "a token for tests"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def exchange(mesh: TcpMesh, size: int, peers: list[int]) -> None:
    data, buffer = memoryview(bytes(size)), memoryview(bytearray(size + 1))
    is_quiet = False

    def be_quiet(_number: int, _frame: object) -> None:
        nonlocal is_quiet
        is_quiet = True

    signal.signal(signal.SIGUSR1, be_quiet)
    for number in range(1_000_000_000):
        for peer in [] if is_quiet else peers:
            mesh.post(peer, b"h", data)
        for peer in peers:
            mesh.receive_into(peer, buffer)
        mesh.drain()
        if number == 0:
            say("exchanged")
        time.sleep(0.001)


def main() -> None:
    host, rank, size, silence = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    listener = PeerListener(host, TOKEN)
    listener.silence_limit = silence
    say(str(listener.address.port))
    addresses = [Address(*line.split()) for line in sys.stdin.readline().split(",")]
    members = tuple(
        Member(rank=number, worker=number, host="", process=1, address=Address(each.host, int(each.port)))
        for number, each in enumerate(addresses)
    )
    generation = Generation(number=1, members=members, schedule="auto", codec="identity", reason="a test")
    mesh, count = None, len(members)
    is_ring = "ring" in sys.argv[5:]
    peers = {(rank - 1) % count, (rank + 1) % count} if is_ring else set(range(count)) - {rank}
    try:
        mesh = connect_mesh(listener, generation, rank, 3.0, peers=peers)
        say("connected")
        exchange(mesh, size, sorted(peers))
    except PeerLost as lost:
        say(f"lost {lost.peer} {lost}")
        unreached = lost.unreached if mesh is None else mesh.unreached(lambda: False)
        say(f"unreached {list(unreached.unreachable)}; late {list(unreached.late)}")
    listener.close()


if __name__ == "__main__":
    main()
    assert "torch" not in sys.modules
