"""The baseline of `shoal bench parameter-server` that torch has: gradients by torch RPC, parameters as the answer.

The server keeps the parameters in as many pieces as calls are made at once: one call with everything, or several that
torch's agent works on at the same time, each of which is received, applied and sent back by itself.
"""

from __future__ import annotations

import torch
from torch.distributed import rpc

SERVER, WORKER = "server", "worker"
PIECES = (1, 4, 16)  # calls at once; the fastest is the baseline
RATE = 0.01
_parameters: dict[int, list[torch.Tensor]] = {}  # by number of pieces


def name_of(pieces: int) -> str:
    return f"torch RPC, {pieces} at once"


def join(name: str, file: str) -> None:
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


def serve(file: str) -> None:
    join(SERVER, file)
    rpc.shutdown()
