"""One rank of a group as a process of its own: reads what to do from stdin, answers on stdout, both a JSON line each.

The schedule `memory` is a group through shared memory.

-> addresses of all ranks        (after it printed its own)
-> sum N | until-failure N       all-reduce of N float32 once, or again and again until something fails
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch

from shoal.codecs.identity import Identity
from shoal.collectives.assembly import GroupConfig, group_over
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError
from shoal.transport.mesh_exchange import exchange_over
from shoal.transport.neighbours import form
from shoal.transport.tcp import PeerListener, connect_mesh
from shoal.transport.team import TeamLimits
from shoal.values import Address, Generation
from support.collectives import TOKEN, generation_of


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def until_failure(group: ThreadedGroup, elements: int) -> None:
    tensor = torch.zeros(elements)
    say(running=True)
    try:
        while True:
            group.all_reduce(tensor, label="again and again").wait()
    except ShoalError as error:
        say(error=type(error).__name__, peer=getattr(error, "peer", None), text=str(error))


def group_of(listener: PeerListener, generation: Generation, rank: int, schedule: str) -> ThreadedGroup:
    mesh = connect_mesh(listener, generation, rank, TOKEN, 60.0)
    if schedule != "memory":
        return ThreadedGroup.over(mesh, 1, schedule, Identity())
    hood = form(exchange_over(mesh, 1), mesh.rank, mesh.size)
    assert len(hood.hosts) == 1
    names = {rank: f"process {rank} of the test" for rank in range(mesh.size)}
    return group_over(mesh, hood, GroupConfig(limits=TeamLimits(stopped=1.0), names=names))


def main() -> None:
    rank, schedule = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    listener = PeerListener("127.0.0.1", TOKEN)
    say(address=[listener.address.host, listener.address.port])
    generation = generation_of([Address(*address) for address in json.loads(sys.stdin.readline())])
    group = group_of(listener, generation, rank, schedule)
    for line in sys.stdin:
        task, elements = line.split()
        if task == "sum":
            tensor = torch.randn(int(elements), generator=torch.Generator().manual_seed(rank))
            group.all_reduce(tensor, label="a sum").wait()
            say(digest=hashlib.sha256(tensor.numpy().tobytes()).hexdigest(), total=tensor.double().sum().item())
        else:
            until_failure(group, int(elements))
    group.close()
    listener.close()


if __name__ == "__main__":
    main()
