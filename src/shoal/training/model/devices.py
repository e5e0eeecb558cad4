"""A worker's device: which one it is, and how models, batches and random numbers get there.

Workers of one machine take its GPUs in turn, and share them where there are fewer GPUs than workers. Without a GPU
everything is on the CPU, and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from shoal.data.seeding import seed_generators
from shoal.environment import local_place

Model = TypeVar("Model", bound=nn.Module)


def own_device() -> torch.device:
    """Choose this process's device; a GPU also becomes torch's default among its GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", chosen_gpu(local_place(), torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def chosen_gpu(place: int, gpus: int) -> int:
    """The GPU for a worker's place on its machine. Pure."""
    return place % gpus


def placed(model: Model, device: torch.device) -> Model:
    """Put a model on the worker's device, unless the script has put any part of it on a device of its choice."""
    tensors = [*model.parameters(), *model.buffers()]
    return model.to(device) if device.type != "cpu" and all(tensor.is_cpu for tensor in tensors) else model


def moved(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device; what has no tensors stays as it is."""
    if device.type == "cpu":
        return batch
    if hasattr(batch, "to"):  # tensors, and the batches of some libraries
        return batch.to(device, non_blocking=True) if isinstance(batch, torch.Tensor) else batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved(part, device) for part in batch)
    return batch


def seed(device: torch.device, number: int) -> None:
    """Seed every generator that a script draws from without having made it: the CPU's, and the device's."""
    seed_generators(number)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[device.index].manual_seed(number)


def finish(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the current streams have done all work that was queued for these tensors."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
