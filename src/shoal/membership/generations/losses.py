"""Which members were lost, and how far their scripts had got: for those who go on, and may have to do it again. Pure.

Not here: what follows from it (`alignment`), and who is lost at all (`generations`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.membership.core.roster import Worker
from shoal.values import THROUGH, Lost


class Losses:
    def __init__(self, known: Iterable[Lost] = ()) -> None:
        self._lost = list(known)

    def add(self, workers: Iterable[Worker], generation: int) -> None:
        """They are in the generation no more, and have not said that they go. Whose script was through is no loss."""
        known = {(one.worker, one.generation) for one in self._lost}
        for worker in workers:
            if worker.point < THROUGH and (worker.number, generation) not in known:
                self._lost.append(Lost(worker=worker.number, generation=generation, point=worker.point))

    def stepped(self, generation: int) -> None:
        """A step was applied in this one: all its members have heard of earlier losses on their way into it."""
        self._lost = [one for one in self._lost if one.generation >= generation]

    @property
    def open(self) -> tuple[Lost, ...]:
        """Those that some members of the next generation may not have heard of."""
        return tuple(self._lost)
