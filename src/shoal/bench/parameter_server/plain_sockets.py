"""The limit that `shoal bench parameter-server` measures against: two plain sockets and the same update.

One carries gradients, the other parameters. Everything overlaps: the worker sends and receives at once, and the server
applies each piece as soon as it is there and sends it back. Nothing is staged, nothing is safe.
"""

from __future__ import annotations

import socket
import threading

import torch

from shoal.codecs.identity import memory_of

NAME = "two sockets"
PIECE = 1 << 20  # elements
RATE = 0.01


def serve(listener: socket.socket, elements: int) -> None:
    """One worker, until it closes."""
    with listener, listener.accept()[0] as incoming, listener.accept()[0] as outgoing:
        outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parameters, gradient = torch.zeros(elements), torch.empty(elements)
        while True:
            for start in range(0, elements, PIECE):
                piece = slice(start, min(start + PIECE, elements))
                if not _receive(incoming, gradient[piece]):
                    return
                parameters[piece].add_(gradient[piece], alpha=-RATE)
                outgoing.sendall(memory_of(parameters[piece]))


class SocketWay:
    def __init__(self, port: int) -> None:
        self._outgoing = socket.create_connection(("127.0.0.1", port))
        self._incoming = socket.create_connection(("127.0.0.1", port))
        self._outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None:
        sending = threading.Thread(target=self._outgoing.sendall, args=(memory_of(gradient),))
        sending.start()
        if not _receive(self._incoming, parameters):
            raise ConnectionError("the plain socket was closed")
        sending.join()

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


def _receive(connection: socket.socket, into: torch.Tensor) -> bool:
    memory = memory_of(into)
    while memory.nbytes:
        got = connection.recv_into(memory)
        if got == 0:
            return False
        memory = memory[got:]
    return True
