"""After a regrouping: which member's state all go on with, and what each of the others has to take from it. Pure.

Members that were in the last generation differ by one applied step or one meeting at most, because both need all of
them; newcomers and workers that come back may be anywhere. Everybody decides this by itself from the same standings.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.values import Generation, Standing


class Taking(enum.Enum):
    """What a member does to be where the source is."""

    KEEP = "it is there"
    LOAD = "it takes the whole state, in the loop that it is in"
    RESULT = "it takes the result of the meeting that the source has passed"
    PAST = "it takes the whole state and goes through its script to where the source is"
    RESTART = "it runs its script again from the top to where the source is"
    START = "it begins from the newest checkpoint, or from the top where there is none"


@dataclass(frozen=True)
class Alignment:
    takings: tuple[Taking, ...]  # by rank
    source: int | None = None  # rank; None: everybody starts
    keepers: tuple[int, ...] = ()  # ranks whose state is the source's, with the source: each may send a part
    differing: tuple[int, ...] = ()  # ranks that should have had the source's parameters, and had others
    is_hopeless: bool = False  # parameters differ and no majority tells which are right

    @property
    def needs_copy(self) -> bool:
        """Whether anybody takes something from the source, which all ranks have a part in."""
        return self.source is not None and any(taking is not Taking.KEEP for taking in self.takings)


def align(standings: Sequence[Standing], generation: Generation) -> Alignment:
    """`standings` are by rank. A member that is no carrier is never a source, whatever it says."""
    carriers = [member.rank for member in generation.members if member.worker in generation.carriers]
    holders = [rank for rank in carriers if standings[rank].generation > 0]
    if not holders:
        return Alignment(takings=(Taking.START,) * generation.size)
    source = max(holders, key=lambda rank: (*_progress(standings[rank]), not standings[rank].is_doubtful, -rank))
    if standings[source].loop == 0:  # no loop has begun: nothing is lost by beginning together
        return Alignment(takings=(Taking.START,) * generation.size)
    keepers = [rank for rank in holders if rank == source or _is_there(standings[rank], standings[source])]
    digests = Counter(standings[rank].digest for rank in keepers)
    right, count = digests.most_common(1)[0]
    if 2 * count <= len(keepers):
        return Alignment(takings=(Taking.START,) * generation.size, differing=tuple(keepers), is_hopeless=True)
    differing = tuple(rank for rank in keepers if standings[rank].digest != right)
    keepers = [rank for rank in keepers if standings[rank].digest == right]
    source = source if source in keepers else keepers[0]
    takings = tuple(
        Taking.KEEP if rank in keepers else _taking(standing, standings[source], is_holder=rank in holders)
        for rank, standing in enumerate(standings)
    )
    return Alignment(takings=takings, source=source, keepers=tuple(keepers), differing=differing)


def _progress(standing: Standing) -> tuple[int, int]:
    """A later generation's state beats an earlier one's; steps and meetings both count up in program order."""
    return standing.generation, standing.step + standing.points


def _is_there(standing: Standing, source: Standing) -> bool:
    same_place = _place(standing) == _place(source) and standing.step == source.step
    return same_place and standing.generation == source.generation and not standing.is_doubtful


def _place(standing: Standing) -> tuple[int, int, bool]:
    return standing.loop, standing.points, standing.in_loop


def _taking(standing: Standing, source: Standing, *, is_holder: bool) -> Taking:
    if standing.is_new:
        return Taking.PAST
    if source.in_loop and _place(standing) == _place(source):
        return Taking.LOAD
    # Outside loops a member that was in the last generation can only be one meeting behind, and in that meeting.
    if is_holder and standing.points + 1 == source.points and standing.step == source.step:
        return Taking.RESULT
    return Taking.RESTART
