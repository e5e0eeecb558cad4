"""Small real checkpoints in a store, as workers and the coordinator write them."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from shoal.checkpoint.parts.capture import Capture, CaptureMemory, NamedState
from shoal.checkpoint.parts.part_writer import write_part
from shoal.checkpoint.published.manifest import About, checkpoint_name, part_name
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.state_tree import flatten_named
from shoal.checkpoint.stores.store import Store
from shoal.membership.publisher import PublishRequest
from shoal.values import Address, Cursor, Generation, Member


def small_tree(value: float = 1.0) -> dict[str, Any]:
    """A model with tied weights and a buffer that is no part of its state_dict, and some optimizer state."""
    entries = {
        "embed.weight": torch.full((40, 1000), value),
        "scale": torch.tensor(value, dtype=torch.float64),
        "phase": torch.full((3, 2), complex(value, -value), dtype=torch.complex64),
        "cache": torch.zeros(5),
    }
    keys = {"embed.weight": "embed.weight", "head.weight": "embed.weight", "scale": "scale", "phase": "phase"}
    return {
        "step": 1,
        "models": {"model 1": entries},
        "keys": {"model 1": keys},
        "optimizers": [{"state": {"model 1/scale": {"momentum": torch.ones(7)}}}],
    }


def write_parts(store: Store, step: int, generation: int, world_size: int = 2, **more: Any) -> PublishRequest:
    """What workers do. `more`: tree, mark."""
    tree, mark = more.get("tree", small_tree()), more.get("mark", "")
    name = checkpoint_name(step, generation)
    members = tuple(
        Member(rank=rank, worker=rank, host="here", process=1 + rank, address=Address("127.0.0.1", 1))
        for rank in range(world_size)
    )
    flat = flatten_named(tree, named="the state")
    state = NamedState(flat.names, flat.tensors, steady=())
    about = About(
        kind="full",
        step=step,
        generation=Generation(generation, members, schedule="ring", codec="identity", reason="start"),
        cursor=Cursor(epoch=1, position=64 * step),
        loop=1,
        first_step=0,
        config="workers = 2\n",
        tree=msgspec.Raw(flat.skeleton),
        reason="every 100 steps",
        mark=mark,
    )
    files = tuple(part_name(rank, world_size) for rank in range(world_size))
    for rank, file in enumerate(files):
        capture = Capture(state, CaptureMemory(), rank=rank, world_size=world_size)
        write_part(store, f"{name}/{file}", capture, about if rank == 0 else None)
    return PublishRequest(checkpoint=name, files=files, mark=mark)


def publish(store: Store, step: int, generation: int = 1, *, keep: int = 100, **more: Any) -> str:
    """A whole checkpoint; its name."""
    request = write_parts(store, step, generation, **more)
    StorePublisher(store, keep).publish(request)
    return request.checkpoint
