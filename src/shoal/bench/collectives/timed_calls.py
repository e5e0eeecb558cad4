"""The calls that `shoal bench collectives` times: every collective of torch.distributed, in each way it can be called.

Buffers are made once per size and shared by the libraries, so that no library has warmer memory. `size` is in bytes of
the largest tensor on a rank, or of all parts together where a collective has parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

ITEM = 4  # bytes of a float32


class Buffers:
    """Two tensors per rank. They are written to: untouched pages of zeros would all be the same page in the cache."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        elements = -(-size // (ITEM * ranks)) * ranks  # every rank has a part of the same size
        self.one = torch.empty(elements).fill_(0.0)
        self.other = torch.empty(elements).fill_(0.0)
        self.part = torch.empty(elements // ranks).fill_(0.0)
        self.parts = list(self.one.chunk(ranks))
        self.other_parts = list(self.other.chunk(ranks))

    @property
    def size(self) -> int:
        return self.one.nbytes


Call = Callable[[Buffers, ProcessGroup], object]


def _send(buffers: Buffers, group: ProcessGroup) -> None:
    """There and back between neighbours; a rank without a neighbour does nothing."""
    peer = buffers.rank ^ 1
    if peer >= buffers.ranks:
        return
    if buffers.rank < peer:
        dist.send(buffers.one, peer, group=group)
        dist.recv(buffers.other, peer, group=group)
    else:
        dist.recv(buffers.other, peer, group=group)
        dist.send(buffers.one, peer, group=group)


def _gather(buffers: Buffers, group: ProcessGroup) -> None:
    dist.gather(buffers.part, buffers.parts if buffers.rank == 0 else None, dst=0, group=group)


def _scatter(buffers: Buffers, group: ProcessGroup) -> None:
    dist.scatter(buffers.part, buffers.parts if buffers.rank == 0 else None, src=0, group=group)


# By collective, then by way of calling it.
CALLS: Mapping[str, Mapping[str, Call]] = {
    "all-reduce": {"": lambda b, group: dist.all_reduce(b.one, group=group)},
    "reduce-scatter": {
        "tensor": lambda b, group: dist.reduce_scatter_tensor(b.part, b.one, group=group),
        "list": lambda b, group: dist.reduce_scatter(b.part, b.parts, group=group),
    },
    "all-gather": {
        "tensor": lambda b, group: dist.all_gather_into_tensor(b.one, b.part, group=group),
        "list": lambda b, group: dist.all_gather(b.parts, b.part, group=group),
    },
    "broadcast": {"": lambda b, group: dist.broadcast(b.one, 0, group=group)},
    "all-to-all": {
        "tensor": lambda b, group: dist.all_to_all_single(b.other, b.one, group=group),
        "list": lambda b, group: dist.all_to_all(b.other_parts, b.parts, group=group),
    },
    "reduce": {"": lambda b, group: dist.reduce(b.one, 0, group=group)},
    "gather": {"": _gather},
    "scatter": {"": _scatter},
    "barrier": {"": lambda _b, group: dist.barrier(group=group)},
    "send": {"": _send},
}


def check(collective: str, way: str, group: ProcessGroup) -> str | None:
    """Try a call before it is timed. Returns what is wrong with its result, or None."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    buffers = Buffers(ITEM * 64 * ranks, rank, ranks)
    for place, part in enumerate(buffers.parts):
        part.fill_(rank + 10 * place)
    buffers.part.fill_(rank)
    total = sum(range(ranks))
    CALLS[collective][way](buffers, group)
    expected = {
        "all-reduce": (buffers.parts, [total + 10 * ranks * place for place in range(ranks)]),
        "reduce-scatter": ([buffers.part], [total + 10 * ranks * rank]),
        "all-gather": (buffers.parts, list(range(ranks))),
        "broadcast": (buffers.parts, [10 * place for place in range(ranks)]),
        "all-to-all": (buffers.other_parts, [source + 10 * rank for source in range(ranks)]),
        "reduce": (buffers.parts if rank == 0 else [], [total + 10 * ranks * place for place in range(ranks)]),
        "gather": (buffers.parts if rank == 0 else [], list(range(ranks))),
        "scatter": ([buffers.part], [10 * rank]),
        "barrier": ([], []),
        "send": (buffers.other_parts, [(rank ^ 1) + 10 * place for place in range(ranks)]),
    }[collective]
    if collective == "send" and rank ^ 1 >= ranks:
        return None
    for tensor, value in zip(expected[0], expected[1], strict=False):
        if not bool((tensor == value).all()):
            return f"{collective} {way} gave {tensor[:3].tolist()} instead of {value} on rank {rank}"
    return None
