"""Plain values: the terms of a simulated job on parameter servers, and which workers are to work on it."""

from __future__ import annotations

import dataclasses

from shoal.wire.tables import LoopTerms


@dataclasses.dataclass(frozen=True)
class GenerationOrder:
    generation: int
    workers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ServedTerms:
    """The terms of the whole job."""

    mode: str  # synchronous or asynchronous
    staleness: int | None
    loop: LoopTerms
    steps: int  # synchronous: number of steps in the job
    calls: float  # probability that a worker calls a meeting in an update
    is_forgetful: bool = False  # workers forget their leases when a new generation is ordered
