"""Models that something else already trains on several devices: DDP, FSDP, DataParallel and their relatives.

A wrapper exchanges gradients in hooks of its own, which get in the way of Shoal's: the gradients of a model wrapped in
DDP stay zero. Not here: what users are told (`training.texts`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping

import torch
from torch import nn

# By class name: what users call the wrapper.
WRAPPERS = {
    "DistributedDataParallel": "DistributedDataParallel",
    "DataParallel": "DataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "ShardedDataParallel": "ShardedDataParallel",
    "FSDPModule": "fully_shard",
    "DDP": "replicate",  # the class that torch's `replicate` mixes in
    "DeepSpeedEngine": "DeepSpeedEngine",
}
PACKAGES = frozenset(("torch", "apex", "fairscale", "deepspeed"))  # that have such classes


def wrapper_of(module: nn.Module) -> str:
    """The wrapper that this very module is, or was made into; empty: none."""
    for kind in type(module).__mro__:
        if kind.__name__ in WRAPPERS and kind.__module__.partition(".")[0] in PACKAGES:
            return WRAPPERS[kind.__name__]
    return ""


def find_wrapper(model: nn.Module) -> tuple[str, str] | None:
    """The first wrapper in a model, and the path of the module that it is; empty: the model itself."""
    for path, module in model.named_modules():
        if wrapper := wrapper_of(module):
            return wrapper, path
    return None


def wrapped_afterwards(models: Mapping[str, nn.Module]) -> tuple[str, str] | None:
    """The name of a model that was wrapped after it was handed over, and the wrapper.

    Looks at all objects of the process, which takes tens of milliseconds, and only where there is a process group:
    without one nobody can wrap a model in DDP.
    """
    for name, model in models.items():
        if (found := find_wrapper(model)) is not None:
            return name, found[0]
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    owners = {id(module): name for name, model in models.items() for module in model.modules()}
    for wrapping in _live_wrappers(gc.get_objects()):
        if (owner := owners.get(id(wrapping.module))) is not None:
            return owner, WRAPPERS["DistributedDataParallel"]
    return None


def _live_wrappers(things: Iterable[object]) -> Iterable[nn.parallel.DistributedDataParallel]:
    """`type` rather than `isinstance`: proxies load what they stand for when they are asked for their class."""
    for thing in things:
        if issubclass(type(thing), nn.parallel.DistributedDataParallel):
            assert isinstance(thing, nn.parallel.DistributedDataParallel)
            yield thing
