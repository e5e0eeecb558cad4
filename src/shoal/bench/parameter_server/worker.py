"""A process of `shoal bench parameter-server`: a worker that tries some ways, or a baseline's server.

A worker says which ways it knows. Each order names a way, and the answer is the seconds that one exchange took. All
ways must come to the same parameters, which is checked when no more orders come.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import torch
from torch.distributed import rpc

from shoal.bench.harness import OrderLine
from shoal.bench.parameter_server import baselines
from shoal.bench.parameter_server.baselines import RATE
from shoal.environment import parse_address
from shoal.parameters.blocks.table_blocks import block_bytes_for
from shoal.parameters.client.parameter_client import ClientConfig, EnrolTerms, ParameterClient
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import Number, PushTerms, RuleSpec, TableSpec, TensorSpec
from shoal.wire.token_file import read_token

TENSORS = 25  # that the parameters are in


class Way(Protocol):
    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None: ...


class ShoalWay:
    """Push a gradient, have it applied, pull the parameters."""

    def __init__(self, client: ParameterClient, elements: int) -> None:
        self._client = client
        self._names = [f"part {number}" for number in range(TENSORS)]
        parts = dict(zip(self._names, torch.zeros(elements).tensor_split(TENSORS), strict=True))
        values: dict[str, Number] = {"lr": RATE, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
        self._groups = ((values,),)
        client.define(
            TableSpec(
                kind="dense",
                tensors=tuple(TensorSpec(name, (part.numel(),), "float32") for name, part in parts.items()),
                rules=(RuleSpec("SGD", (values,)),),
                block_bytes=block_bytes_for(elements * 4),
            )
        )
        client.enrol(EnrolTerms(generation=1, workers=(0,), mode="asynchronous"))
        client.assign(parts, None, 0)
        self._updates = 0

    def exchange(self, gradient: torch.Tensor, parameters: torch.Tensor) -> None:
        push = self._client.begin_push()
        for name, part in zip(self._names, gradient.tensor_split(TENSORS), strict=True):
            push.put(name, part)
        answer = self._client.commit(push, PushTerms(groups=self._groups, read=self._updates))
        assert isinstance(answer, Committed), answer
        self._updates = answer.updates
        pull = self._client.pull(answer.number, self._names)
        for name, part in zip(self._names, parameters.tensor_split(TENSORS), strict=True):
            pull.wait(name, into=part)


def serve_turns(ways: dict[str, Way], elements: int) -> None:
    orders = OrderLine()
    gradient = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    results = {name: torch.zeros(elements) for name in ways}
    turns = dict.fromkeys(ways, 0)
    orders.answer(list(ways))
    for name in orders:
        began = time.perf_counter()
        ways[name].exchange(gradient, results[name])
        orders.answer(time.perf_counter() - began)
        turns[name] += 1
    for name, parameters in results.items():
        wanted = -RATE * turns[name] * gradient
        torch.testing.assert_close(parameters, wanted, rtol=1e-4, atol=1e-4, msg=f"{name} has other parameters")


def work_plain(options: argparse.Namespace) -> None:
    """The baselines."""
    baselines.join_rpc(baselines.WORKER, options.rpc_file)
    with closing(baselines.SocketWay(options.socket_port)) as plain:
        ways: dict[str, Way] = {
            baselines.rpc_name(calls): baselines.RpcWay(calls, options.elements) for calls in baselines.CALLS
        }
        serve_turns({**ways, baselines.SOCKETS: plain}, options.elements)
    rpc.shutdown()


def work_shoal(options: argparse.Namespace) -> None:
    """By shared memory, and with every byte sent."""
    token = read_token(Path(options.token_file))
    ways: dict[str, Way] = {}
    with ExitStack() as stack:
        for job in ("shared", "sent"):
            config = ClientConfig(
                keeper=parse_address(options.keeper, named="--keeper"),
                key=token,
                job=job,
                worker=0,
                shares_memory=job == "shared",
            )
            client = stack.enter_context(closing(ParameterClient(config)))
            ways[f"Shoal, {job}"] = ShoalWay(client, options.elements)
        serve_turns(ways, options.elements)


def serve_sockets(options: argparse.Namespace) -> None:
    baselines.serve_sockets(socket.socket(fileno=options.listen_fd), options.elements)


def serve_rpc(options: argparse.Namespace) -> None:
    baselines.serve_rpc(options.rpc_file)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "plain": work_plain,
    "shoal": work_shoal,
    "rpc": serve_rpc,
    "socket": serve_sockets,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--keeper", default="")
    parser.add_argument("--token-file", default="")
    parser.add_argument("--rpc-file", default="")
    parser.add_argument("--socket-port", type=int, default=0)
    parser.add_argument("--listen-fd", type=int, default=-1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    PARTS[options.part](options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
