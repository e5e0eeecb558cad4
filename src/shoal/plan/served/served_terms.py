"""What a simulated job on parameter servers is about, and who is to work on it. Plain values."""

from __future__ import annotations

import dataclasses

from shoal.wire.tables import LoopTerms


@dataclasses.dataclass(frozen=True)
class GenerationOrder:
    generation: int
    workers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ServedTerms:
    """Of the whole job."""

    mode: str  # synchronous or asynchronous
    staleness: int | None
    loop: LoopTerms
    steps: int  # synchronous: how many to do
    calls: float  # how likely a worker calls a meeting in an update
    is_forgetful: bool = False  # workers forget their leases when a new generation is ordered
