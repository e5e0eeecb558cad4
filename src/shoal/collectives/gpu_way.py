"""Which way the tensors of GPUs take in one group: NCCL where every rank has a GPU of one machine to itself, else
through pinned host memory.

Decided in the first operation on a GPU: all ranks are in it together, and a job that uses no GPU pays nothing. Where
NCCL does not come about on some rank, all take the other way. Whichever way, an operation starts after what the
caller's stream had been given before the call, and when it is done no stream has to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.collectives.engine import Engine
from shoal.collectives.ferry import Ferry
from shoal.collectives.gpu_copies import Moment, copies_after
from shoal.collectives.memory_engine import MemoryEngine

Work = Callable[[Engine], None]


class GpuWay:
    """One per group. `abort` may come from any thread."""

    def __init__(self, engine: Engine) -> None:
        """The engine, for tensors in memory, is its owner's."""
        self._engine = engine

    def run(self, moment: Moment, work: Work, engine: Engine) -> None:
        """Do the work on an engine that takes tensors of that moment's GPU."""
        with copies_after(moment) as copies:
            work(Ferry(engine, copies))
