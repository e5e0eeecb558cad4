"""A state from one member of a group to the others: received aside, handed over whole.

The caller decides who is the source. Nothing of the receiver changes before the last byte is in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shoal.checkpoint.state_tree import Tree, dtype_named, flatten, tensor_places, unflatten
from shoal.collectives.group import Group
from shoal.errors import WireError

MAX_BYTES = 256 * 1024 * 1024  # of anything that is not a tensor


@dataclass(frozen=True)
class Copied:
    state: Tree  # the source's own object on the source
    size: int  # bytes of tensors and skeleton


def copy_state(state: Tree, source: int, group: Group) -> Copied:
    """Called by all ranks; returns the source's state on each. `state` is used on the source only."""
    is_source = group.rank == source
    skeleton, tensors = flatten(state, named="the state") if is_source else (b"", [])
    skeleton = broadcast_bytes(skeleton, source, group, label="skeleton of the state")
    if not is_source:
        places = tensor_places(skeleton)
        tensors = [torch.empty(place.shape, dtype=dtype_named(place.dtype)) for place in places]
    pending = [
        group.broadcast(tensor, source, label=f"state, tensor {number}") for number, tensor in enumerate(tensors)
    ]
    for one in pending:
        one.wait()
    size = len(skeleton) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Copied(state=state if is_source else unflatten(skeleton, tensors), size=size)


def broadcast_bytes(data: bytes, source: int, group: Group, *, label: str) -> bytes:
    """The source's bytes, at least one, on every rank."""
    length = torch.tensor([len(data)], dtype=torch.int64)
    group.broadcast(length, source, label=f"length of {label}").wait()
    if not 0 < int(length.item()) <= MAX_BYTES:
        raise WireError(f"{label} has {int(length.item())} bytes; 1 to {MAX_BYTES} are allowed")
    buffer = torch.zeros(int(length.item()), dtype=torch.uint8)
    if group.rank == source:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    group.broadcast(buffer, source, label=label).wait()
    return bytes(buffer.numpy().tobytes())
