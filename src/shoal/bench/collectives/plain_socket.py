"""A plain TCP socket between two ranks: how fast a link moves the bytes that a collective has to move."""

from __future__ import annotations

import socket
import threading

from torch._C._distributed_c10d import Store

from shoal.bench.collectives.calls import Buffers
from shoal.codecs.identity import memory_of

KEY = "plain socket"
PIECE = 4 << 20  # bytes that one call hands to the kernel


class PlainSocket:
    def __init__(self, rank: int, store: Store, host: str) -> None:
        """`host`: of rank 0."""
        if rank == 0:
            with socket.create_server((host, 0)) as listening:
                store.set(KEY, str(listening.getsockname()[1]))
                self._connection, _ = listening.accept()
        else:
            self._connection = socket.create_connection((host, int(store.get(KEY))))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_reduce(self, buffers: Buffers) -> None:
        """What the best all-reduce of two moves: as many bytes as the tensor has, both ways at once."""
        sending = threading.Thread(target=self._send, args=(buffers,))
        sending.start()
        self._receive(buffers)
        sending.join()

    def send(self, buffers: Buffers) -> None:
        """There and back."""
        for turn in (0, 1):
            if buffers.rank == turn:
                self._send(buffers)
            else:
                self._receive(buffers)

    def close(self) -> None:
        self._connection.close()

    def _send(self, buffers: Buffers) -> None:
        memory = memory_of(buffers.one)
        for start in range(0, len(memory), PIECE):
            self._connection.sendall(memory[start : start + PIECE])

    def _receive(self, buffers: Buffers) -> None:
        memory = memory_of(buffers.other)
        while memory.nbytes:
            got = self._connection.recv_into(memory[:PIECE])
            if got == 0:
                raise ConnectionError("the plain socket was closed")
            memory = memory[got:]
