"""A process of `shoal bench parameter-server`: the worker that tries every way in turns, or a baseline's server.

The worker prints one JSON line: seconds by way, one per turn. Every way must come to the same parameters.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch.distributed import rpc

from shoal.cli import bench_parameter_server_rpc as torch_rpc
from shoal.cli import bench_parameter_server_sockets as sockets
from shoal.environment import parse_address
from shoal.parameters.client import ClientConfig, EnrolTerms, ParameterClient
from shoal.parameters.table_blocks import block_bytes_for
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import Number, PushTerms, RuleSpec, TableSpec, TensorSpec

RPC_PIECES = (1, 4, 16)  # calls at once; the fastest is the baseline
TENSORS = 25  # that the parameters are in
RATE = 0.01


class Way(Protocol):
    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None: ...


class ShoalWay:
    """Push a gradient, have it applied, pull the parameters."""

    def __init__(self, client: ParameterClient, elements: int) -> None:
        self._client = client
        self._names = [f"part {number}" for number in range(TENSORS)]
        parts = torch.empty(elements).tensor_split(TENSORS)
        values: dict[str, Number] = {"lr": RATE, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
        groups = (values,)
        self._terms = PushTerms(groups=(groups,))
        client.define(
            TableSpec(
                kind="dense",
                tensors=tuple(
                    TensorSpec(name, (part.numel(),), "float32") for name, part in zip(self._names, parts, strict=True)
                ),
                rules=(RuleSpec("SGD", groups),),
                block_bytes=block_bytes_for(elements * 4),
            )
        )
        client.enrol(EnrolTerms(generation=1, workers=(0,), mode="asynchronous"))
        client.assign({name: torch.zeros(part.numel()) for name, part in zip(self._names, parts, strict=True)}, None, 0)
        self._updates = 0

    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None:
        push = self._client.begin_push()
        for name, part in zip(self._names, gradient.tensor_split(TENSORS), strict=True):
            push.put(name, part)
        terms = PushTerms(groups=self._terms.groups, read=self._updates)
        answer = self._client.commit(push, terms)
        assert isinstance(answer, Committed), answer
        self._updates = answer.updates
        pull = self._client.pull(answer.number, self._names)
        for name, part in zip(self._names, parameters.tensor_split(TENSORS), strict=True):
            pull.wait(name, into=part)


def measure(ways: dict[str, Way], elements: int, turns: int) -> dict[str, list[float]]:
    """Seconds by way. The order changes from turn to turn; the first turn does not count."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(elements, generator=generator)
    results = {name: torch.zeros(elements) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            ways[name].exchange(gradient, results[name])
            if turn:
                seconds[name].append(time.perf_counter() - began)
    expected = -RATE * (turns + 1) * gradient
    for name, parameters in results.items():
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-4, msg=f"{name} has other parameters")
    return seconds


def _work(options: argparse.Namespace) -> None:
    torch_rpc.join(torch_rpc.WORKER, options.rpc_port)
    token = Path(options.token_file).read_text(encoding="ascii").strip()
    clients = {
        name: ParameterClient(
            ClientConfig(
                keeper=parse_address(options.keeper, named="--keeper"),
                token=token,
                job=name,
                worker=0,
                shares_memory=name == "shared",
            )
        )
        for name in ("shared", "sent")
    }
    plain = sockets.SocketWay(options.socket_port)
    ways: dict[str, Way] = {
        f"torch RPC, {pieces} at once": torch_rpc.RpcWay(pieces, options.elements) for pieces in RPC_PIECES
    }
    ways |= {"two sockets": plain}
    ways |= {f"Shoal, {name}": ShoalWay(client, options.elements) for name, client in clients.items()}
    print(json.dumps(measure(ways, options.elements, options.turns)), flush=True)
    for client in clients.values():
        client.close()
    plain.close()
    rpc.shutdown()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["worker", "rpc", "socket"])
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--keeper", default="")
    parser.add_argument("--token-file", default="")
    parser.add_argument("--rpc-port", type=int, default=0)
    parser.add_argument("--socket-port", type=int, default=0)
    parser.add_argument("--listen-fd", type=int, default=-1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.part == "worker":
        _work(options)
    elif options.part == "rpc":
        torch_rpc.serve(options.rpc_port)
    else:
        sockets.serve(socket.socket(fileno=options.listen_fd), options.elements)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
