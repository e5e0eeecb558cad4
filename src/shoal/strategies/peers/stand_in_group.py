"""The group of a worker that has not been let in yet: it has a rank and a size to build with, and can do nothing."""

from __future__ import annotations

from typing import NoReturn

from shoal.collectives.operations import Alone, Make, Operations, Work
from shoal.errors import ShoalError
from shoal.values import Generation, Member


class StandInGroup(Operations):
    def __init__(self, rank: int) -> None:
        """As if this worker came in after `rank` others."""
        super().__init__(None, None, 0)
        self.rank = rank
        self.size = rank + 1

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _start(self, _sequence: str, make: Make, _work: Work, _alone: Alone) -> NoReturn:
        raise ShoalError(f"{make(0).label!r} was begun by a worker that is in no generation yet")


def stand_in_generation(me: Member, current: Generation | None) -> Generation:
    """The current generation as if this worker were its last member; number 0, which no generation has."""
    others = () if current is None else current.members
    return Generation(
        number=0,
        members=(*others, me),
        schedule="auto" if current is None else current.schedule,
        codec="identity" if current is None else current.codec,
        reason="waiting to be let in",
    )
