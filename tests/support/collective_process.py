"""One rank of a group as a process of its own: hears through a pipe what to do, and answers.

The schedule `memory` is a group through shared memory.

-> addresses of all ranks                    (after it told its own)
-> ("sum", N) | ("until-failure", N)         all-reduce of N float32 once, or again and again until something fails
-> ("gather-until-failure", N)               all-gather of N float32 each
-> ("hold", N)                               have N more bytes
-> None                                      the end
"""

from __future__ import annotations

import hashlib
from multiprocessing.connection import Connection

import torch

from shoal.codecs.identity import Identity
from shoal.collectives.assembly import GroupConfig, group_over
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError
from shoal.transport.memory.neighbours import form
from shoal.transport.memory.team import TeamLimits
from shoal.transport.mesh.mesh_exchange import exchange_over
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation
from support.collectives import TOKEN, generation_of


def until_failure(group: ThreadedGroup, task: str, elements: int, pipe: Connection) -> None:
    tensor, all_tensors = torch.zeros(elements), [torch.zeros(elements) for _ in range(group.size)]
    pipe.send({"running": True})
    try:
        while True:
            if task == "until-failure":
                group.all_reduce(tensor, label="again and again").wait()
            else:
                group.all_gather(all_tensors, tensor, label="again and again").wait()
    except ShoalError as error:
        pipe.send({"error": type(error).__name__, "peer": getattr(error, "peer", None), "text": str(error)})


def group_of(listener: PeerListener, generation: Generation, rank: int, schedule: str) -> ThreadedGroup:
    mesh = connect_mesh(listener, generation, rank, 60.0)
    if schedule != "memory":
        return ThreadedGroup.over(mesh, 1, schedule, Identity())
    hood = form(exchange_over(mesh, 1), mesh.rank, mesh.size)
    assert len(hood.hosts) == 1
    names = {rank: f"process {rank} of the test" for rank in range(mesh.size)}
    return group_over(mesh, hood, GroupConfig(limits=TeamLimits(stopped=1.0), names=names))


def serve(rank: int, schedule: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    listener = PeerListener("127.0.0.1", TOKEN)
    pipe.send({"address": [listener.address.host, listener.address.port]})
    group = group_of(listener, generation_of([Address(*address) for address in pipe.recv()]), rank, schedule)
    held = []
    while (order := pipe.recv()) is not None:
        task, elements = order
        if task == "hold":
            held.append(b"1" * elements)
        elif task == "sum":
            tensor = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
            group.all_reduce(tensor, label="a sum").wait()
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            pipe.send({"digest": digest, "total": tensor.double().sum().item()})
        else:
            until_failure(group, task, elements, pipe)
    group.close()
    listener.close()
