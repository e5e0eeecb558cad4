"""What `shoal bench parameter-server` compares with: torch RPC, and two plain sockets as the limit.

torch RPC: gradients go as arguments, parameters come back as the answer. The server keeps the parameters in as many
pieces as calls are made at once: one call with everything, or several that torch's agent works on at the same time,
each of which is received, applied and sent back by itself.

Sockets: one carries gradients, the other parameters. Everything overlaps: the worker sends and receives at once, and
the server applies each piece when it arrives and sends it back. Nothing is staged, so nothing survives a failure.
"""

from __future__ import annotations

import socket
import threading

import torch
from torch.distributed import rpc

from shoal.codecs.identity import memory_of

SERVER, WORKER = "server", "worker"
CALLS = (1, 4, 16)  # calls at once; the fastest is the baseline
RATE = 0.01  # of the plain SGD that all apply
SOCKETS = "two sockets"
SOCKET_PIECE = 1 << 20  # elements
_parameters: dict[int, list[torch.Tensor]] = {}  # by number of pieces


def rpc_name(pieces: int) -> str:
    return f"torch RPC, {pieces} at once"


def join_rpc(name: str, file: str) -> None:
    """`file`: where the two find each other."""
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, rpc_timeout=300, init_method=f"file://{file}")
    rpc.init_rpc(name, rank=(SERVER, WORKER).index(name), world_size=2, rpc_backend_options=options)


def hold(pieces: int, elements: int) -> None:
    """On the server: parameters, all zero."""
    _parameters[pieces] = [torch.zeros(part.numel()) for part in torch.empty(elements).tensor_split(pieces)]


def update(pieces: int, number: int, gradient: torch.Tensor) -> torch.Tensor:
    """On the server: a step of plain SGD, and the new values."""
    return _parameters[pieces][number].add_(gradient, alpha=-RATE)


class RpcWay:
    """One worker's side."""

    def __init__(self, pieces: int, elements: int) -> None:
        self._pieces = pieces
        rpc.rpc_sync(SERVER, hold, args=(pieces, elements))

    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None:
        calls = [
            rpc.rpc_async(SERVER, update, args=(self._pieces, number, part))
            for number, part in enumerate(gradient.tensor_split(self._pieces))
        ]
        for part, call in zip(parameters.tensor_split(self._pieces), calls, strict=True):
            part.copy_(call.wait())


def serve_rpc(file: str) -> None:
    join_rpc(SERVER, file)
    rpc.shutdown()


def serve_sockets(listener: socket.socket, elements: int) -> None:
    """One worker, until it closes."""
    with listener, listener.accept()[0] as incoming, listener.accept()[0] as outgoing:
        outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parameters, gradient = torch.zeros(elements), torch.empty(elements)
        while True:
            for start in range(0, elements, SOCKET_PIECE):
                piece = slice(start, min(start + SOCKET_PIECE, elements))
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
