"""Which members were lost, and how far their scripts had got. Pure.

The remaining members may have to run again what the lost ones left unfinished behind a loop (`alignment`). Not here:
which members are lost (`generations`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.membership.core.roster import Worker
from shoal.values import THROUGH, LostMember


class Losses:
    def __init__(self, known: Iterable[LostMember] = ()) -> None:
        self._lost = list(known)

    def add(self, workers: Iterable[Worker], generation: int) -> None:
        """These left the generation without announcing it. A worker whose script was through is no loss."""
        known = {(one.worker, one.generation) for one in self._lost}
        for worker in workers:
            if worker.point < THROUGH and (worker.number, generation) not in known:
                self._lost.append(LostMember(worker=worker.number, generation=generation, point=worker.point))

    def stepped(self, generation: int) -> None:
        """A step was applied in this generation: its members heard of earlier losses when they entered it."""
        self._lost = [one for one in self._lost if one.generation >= generation]

    @property
    def open(self) -> tuple[LostMember, ...]:
        """Losses that some members of the next generation may not have heard of."""
        return tuple(self._lost)
