"""What moves the tensors of a group's GPUs: NCCL where every rank can use it, else Shoal's own transport. Pure.

All ranks know the same facts about all ranks, so they choose alike. A choice has its reason, which names the rank that
stands in the way. Not here: how ranks learn the facts (`gpu_facts`), and what is done with the choice (`gpu_way`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.bounds import Name

OWN, NCCL = "shoal", "nccl"
NOT_TRUSTED = (
    "NCCL's connections between machines are not encrypted and need no token; in a network that you trust, "
    "--plaintext or --carrier nccl allows them"
)


class RankGpu(msgspec.Struct, frozen=True):
    """What one rank has, and what its user allows."""

    host: Name  # the machine's own name, for people
    gpu: Name  # an identifier that no other GPU has; empty: the rank has no GPU
    nccl: Name  # version; empty: the rank's torch has no NCCL
    is_wanted: bool = True  # False: the rank has SHOAL_NCCL=0
    is_open: bool = False  # its connections to other machines need not be encrypted


@dataclass(frozen=True)
class CarrierChoice:
    carrier: str  # `OWN` or `NCCL`
    reason: str


def choose_carrier(ranks: Sequence[RankGpu], *, machines: int, kept: str = "") -> CarrierChoice:
    """`machines`: how many the ranks are on. `kept`: why the job wants Shoal's own transport; empty: it does not."""
    why_not = why_not_nccl(ranks) or kept or _unwanted(ranks) or (_closed(ranks) if machines > 1 else "")
    if why_not:
        return CarrierChoice(OWN, why_not)
    where = "one machine" if machines == 1 else f"{machines:,} machines"
    return CarrierChoice(NCCL, f"each of {len(ranks):,} ranks on {where} has its own GPU and NCCL {ranks[0].nccl}")


def why_not_nccl(ranks: Sequence[RankGpu]) -> str:
    """What keeps NCCL from working between these ranks; empty if nothing does."""
    without = [rank for rank, one in enumerate(ranks) if not one.gpu]
    if without:
        return "no rank has a GPU" if len(without) == len(ranks) else f"{_who(ranks, without)} no GPU"
    owners: dict[str, int] = {}
    for rank, one in enumerate(ranks):
        if (other := owners.setdefault(one.gpu, rank)) != rank:
            return f"ranks {other} and {rank} on {one.host} share a GPU"
    lacking = [rank for rank, one in enumerate(ranks) if not one.nccl]
    if lacking:
        return f"{_who(ranks, lacking)} a torch without NCCL"
    other = next((rank for rank, one in enumerate(ranks) if one.nccl != ranks[0].nccl), 0)
    if other:
        versions = ((rank, ranks[rank]) for rank in (0, other))
        return " and ".join(f"rank {rank} on {one.host} has NCCL {one.nccl}" for rank, one in versions)
    return ""


def _unwanted(ranks: Sequence[RankGpu]) -> str:
    found = [rank for rank, one in enumerate(ranks) if not one.is_wanted]
    return f"{_who(ranks, found)} SHOAL_NCCL=0" if found else ""


def _closed(ranks: Sequence[RankGpu]) -> str:
    found = [rank for rank, one in enumerate(ranks) if not one.is_open]
    if not found:
        return ""
    return NOT_TRUSTED if len(found) == len(ranks) else f"{NOT_TRUSTED}; {_who(ranks, found)} not allowed them"


def _who(ranks: Sequence[RankGpu], found: Sequence[int]) -> str:
    """'rank 2 on b has', 'rank 2 on b and 3 other ranks have'."""
    first = f"rank {found[0]} on {ranks[found[0]].host}"
    if len(found) == 1:
        return f"{first} has"
    return f"{first} and {len(found) - 1:,} other rank{'s' * (len(found) > 2)} have"
