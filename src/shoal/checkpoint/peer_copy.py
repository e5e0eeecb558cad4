"""Copies a state from members that have it to members that need it: received aside, handed over whole.

The caller decides who has the state (givers) and who needs it (receivers). Givers share out the tensors that all of
them hold alike; the rest comes from the source. Nothing of a receiver changes before the last byte is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.checkpoint.state_tree import Tree, dtype_named, flatten_paths, tensor_places, unflatten
from shoal.collectives.group import Group
from shoal.errors import WireError, WorkersDisagree

MAX_BYTES = 256 * 1024 * 1024  # of anything that is not a tensor
ALIKE = ("models/", "optimizers/")  # parts of a state that are the same on all givers, bit for bit


@dataclass(frozen=True)
class Copied:
    state: Tree
    size: int  # bytes of tensors and skeleton


def copy_state(state: Tree | None, *, givers: Sequence[int], receivers: Sequence[int], group: Group) -> Copied | None:
    """Called by all ranks. The first giver is the source. `state` is used on givers; receivers get a copy of it."""
    source, is_receiver = givers[0], group.rank in receivers
    skeleton, senders = b"", list[int]()
    tensors: list[torch.Tensor] = []
    if group.rank in givers:
        skeleton, tensors, paths = flatten_paths(state, named="the state")
        senders = _senders(paths, [t.numel() * t.element_size() for t in tensors], givers)
    common = broadcast_bytes(skeleton, source, group, label="skeleton of the state")
    senders = _broadcast_numbers(senders, source, group)
    if group.rank in givers and len(tensors) != len(senders):
        raise WorkersDisagree(f"rank {group.rank} holds {len(tensors)} tensors and rank {source} {len(senders)}")
    if is_receiver:
        places = tensor_places(common)
        tensors = [torch.empty(place.shape, dtype=dtype_named(place.dtype)) for place in places]
        if len(senders) != len(tensors) or not set(senders) <= set(givers):
            raise WireError(f"{len(tensors)} tensors of a state come from {len(senders)} senders")
    pending = []
    # All ranks go in one order, tensor after tensor and receiver after receiver, so that none wait in a circle.
    for number, (tensor, sender) in enumerate(zip(tensors, senders, strict=False)):
        if group.rank == sender:
            pending += [group.send(tensor, rank, label=f"state, tensor {number}") for rank in receivers]
        elif is_receiver:
            pending.append(group.receive(tensor, sender, label=f"state, tensor {number}"))
    for one in pending:
        one.wait()
    if not is_receiver:
        return None
    size = len(common) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Copied(state=unflatten(common, tensors), size=size)


def _senders(paths: Sequence[str], sizes: Sequence[int], givers: Sequence[int]) -> list[int]:
    """By tensor: the giver that sends it. The giver with the least to send so far gets the next tensor."""
    load = dict.fromkeys(givers, 0)
    senders = []
    for path, size in zip(paths, sizes, strict=True):
        sender = min(load, key=lambda rank: load[rank]) if path.startswith(ALIKE) else givers[0]
        load[sender] += size
        senders.append(sender)
    return senders


def _broadcast_numbers(numbers: list[int], source: int, group: Group) -> list[int]:
    data = b"".join(number.to_bytes(4, "big") for number in numbers)
    data = broadcast_bytes(b"!" + data, source, group, label="who sends which tensor")[1:]
    return [int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4)]


def broadcast_bytes(data: bytes, source: int, group: Group, *, label: str) -> bytes:
    """Give every rank the source's bytes, of which there is at least one."""
    length = torch.tensor([len(data)], dtype=torch.int64)
    group.broadcast(length, source, label=f"length of {label}").wait()
    if not 0 < int(length.item()) <= MAX_BYTES:
        raise WireError(f"{label} has {int(length.item())} bytes; 1 to {MAX_BYTES} are allowed")
    buffer = torch.zeros(int(length.item()), dtype=torch.uint8)
    if group.rank == source:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    group.broadcast(buffer, source, label=label).wait()
    return bytes(buffer.numpy().tobytes())
