"""Links that are slow on purpose, also between ranks that share a machine and need no link: these are held up for as
long as their bytes would take."""

from __future__ import annotations

import time

from shoal.collectives.engine import Operation
from shoal.transport.mesh.faults import LinkFaults
from shoal.values import Generation

SLICE_SECONDS = 0.005


class Brake:
    """Called before every operation of a group."""

    def __init__(self, faults: LinkFaults, generation: Generation, rank: int) -> None:
        self._faults = faults
        self._workers = [member.worker for member in generation.members if member.rank != rank]

    def __call__(self, operation: Operation) -> None:
        if not self._faults.is_set or not self._workers:
            return
        share = 2 * operation.elements * operation.dtype.itemsize // (len(self._workers) + 1)
        for worker in self._workers:
            left = share
            while left > 0:
                left -= self._faults.allowance(worker, left)
                if left > 0:
                    time.sleep(SLICE_SECONDS)
