"""What this rank tells the others about its GPU, and what it reads of theirs. The decision is in `carrier_choice`."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import torch
import torch.distributed

from shoal.collectives.gpu.carrier_choice import RankGpu
from shoal.environment import nccl_is_wanted, plaintext
from shoal.errors import WireError


def current_gpu() -> torch.device | None:
    """The GPU that torch takes in this thread unless it is told another one; None: there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def own_facts(device: torch.device | None) -> bytes:
    """`device`: where this rank's tensors are; None, or no GPU: it has none."""
    has_gpu = device is not None and device.type == "cuda"
    has_nccl = has_gpu and torch.distributed.is_nccl_available()
    facts = RankGpu(
        host=socket.gethostname(),
        gpu=str(torch.cuda.get_device_properties(device).uuid) if has_gpu else "",
        nccl=".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "",
        is_wanted=nccl_is_wanted(),
        is_open=plaintext(),
    )
    return msgspec.msgpack.encode(facts)


def facts_of(told: Sequence[bytes]) -> list[RankGpu]:
    """`told`: what `own_facts` gave on every rank, in order of ranks."""
    found = []
    for rank, data in enumerate(told):
        try:
            found.append(msgspec.msgpack.decode(data, type=RankGpu))
        except msgspec.MsgspecError as error:
            raise WireError(
                f"rank {rank} described its GPU in {len(data)} bytes that cannot be read: {error}"
            ) from None
    return found
