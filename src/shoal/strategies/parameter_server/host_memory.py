"""Values of tensors on a device, in host memory: what servers send and get is there.

Copies are complete when the functions return, in both directions: a server reads the memory, or writes over it, at
once. So they are ordered only with the caller's stream, on which they are made. For GPUs the memory is pinned, which
makes copies three times as fast. Not here: copies that go on beside computing
(`collectives.gpu_copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.collectives.gpu.pinned_memory import pool


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous host memory for a tensor's values, uninitialized."""
    if tensor.is_cuda:
        return pool.take(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is in host memory, else a copy."""
    return tensor if tensor.is_cpu else room_for(tensor).copy_(tensor)


def numbers(scalars: Sequence[torch.Tensor | float]) -> list[float]:
    """The values of tensors without dimensions: one wait for each device that they are on, not one for each of them."""
    found = [0.0] * len(scalars)
    places: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for place, scalar in enumerate(scalars):
        if isinstance(scalar, float) or scalar.is_cpu:
            found[place] = float(scalar)
        else:
            places.setdefault((scalar.device, scalar.dtype), []).append((place, scalar))
    for alike in places.values():
        values = torch.stack([scalar for _, scalar in alike]).cpu().tolist()
        for (place, _), value in zip(alike, values, strict=True):
            found[place] = value
    return found
