"""All workers hold the same model: the same names, shapes and dtypes, then the same values.

The check travels as a digest; only when digests differ are the lists compared and the first difference named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import nn
from torch.nn.parameter import is_lazy

from shoal.bounds import MOST_ITEMS, Name, Shape
from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.collectives.group import Group
from shoal.errors import ModelsDiffer, UsageError
from shoal.strategies import texts
from shoal.values import Generation

_Entry = tuple[Name, Name, Shape, Name]  # kind, name, shape, dtype and device
_decoder: msgspec.msgpack.Decoder[list[_Entry]] = msgspec.msgpack.Decoder(
    Annotated[list[_Entry], Meta(max_length=MOST_ITEMS)]
)


def describe(model: nn.Module) -> list[_Entry]:
    """Parameters and buffers in their order, tied ones once."""
    entries: list[_Entry] = []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UsageError(texts.no_shape(name))
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        entries += [(kind, name, tuple(tensor.shape), _type_text(tensor)) for name, tensor in tensors]
    return entries


def _type_text(tensor: torch.Tensor) -> str:
    """A tensor's dtype, and its device if not the CPU: workers with and without a GPU cannot exchange tensors."""
    dtype = str(tensor.dtype)[6:]
    return dtype if tensor.is_cpu else f"{dtype} on {tensor.device.type}"


def first_difference(left: list[_Entry], right: list[_Entry]) -> tuple[str, str] | None:
    """What the left and the right model have at the first place where they differ, as text."""
    for ours, theirs in zip_longest(left, right):
        if ours != theirs:
            return _text(ours), _text(theirs)
    return None


def _text(entry: _Entry | None) -> str:
    if entry is None:
        return "nothing more"
    kind, name, shape, dtype = entry
    return f"{kind} {name!r} {list(shape)} {dtype}"


def check_same_model(model: nn.Module, name: str, group: Group, generation: Generation) -> None:
    """Raise ModelsDiffer, with the same text on every worker, if any worker's model differs from rank 0's."""
    listing = msgspec.msgpack.encode(describe(model))
    mine = torch.frombuffer(bytearray(hashlib.sha256(listing).digest()), dtype=torch.uint8)
    digests = [torch.empty_like(mine) for _ in range(group.size)]
    group.all_gather(digests, mine, label=f"digest of {name}").wait()
    other = next((rank for rank, digest in enumerate(digests) if not torch.equal(digest, digests[0])), None)
    if other is None:
        return
    first, second = (
        _decoder.decode(broadcast_bytes(listing, rank, group, label=f"listing of {name}")) for rank in (0, other)
    )
    difference = first_difference(first, second)
    assert difference is not None, "digests differ, so listings do"
    workers = [generation.members[rank].worker for rank in (0, other)]
    raise ModelsDiffer(
        f"{name} is not the same on all workers: worker {workers[0]} has {difference[0]} where worker {workers[1]} has "
        f"{difference[1]}; build it from the same settings on every worker"
    )


def broadcast_model(model: nn.Module, name: str, group: Group) -> None:
    """Rank 0's parameters and buffers on every rank."""
    with torch.no_grad():
        tensors = [*model.named_parameters(), *model.named_buffers()]
        waiting = [group.broadcast(t.data, 0, label=f"weights of {name}, {entry}") for entry, t in tensors]
        for pending in waiting:
            pending.wait()


def digest(models: Iterable[nn.Module], *, of_buffers: bool = False) -> int:
    """A number that differs, almost surely, where any bit of any parameter, or of any buffer, differs."""
    total = 0
    for model in models:
        for tensor in model.buffers() if of_buffers else model.parameters():
            total = (total * 1_000_003 + _tensor_digest(tensor.detach())) % 2**61
    return total


def _tensor_digest(tensor: torch.Tensor) -> int:
    """The sum of a tensor's memory, read as integers as wide as its elements."""
    flat = tensor.contiguous().reshape(-1)
    flat = torch.view_as_real(flat.resolve_conj()).reshape(-1) if flat.is_complex() else flat
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    return int(flat.view(integers).sum(dtype=torch.int64).item())
