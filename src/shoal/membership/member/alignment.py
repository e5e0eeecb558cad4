"""After a regrouping: which member's state all go on with, and what each of the others has to take from it. Pure.

Members of the last generation differ by at most one applied step or one meeting, because both need all of them;
newcomers and workers that come back may be anywhere. Each member decides this for itself from the same standings.

Behind a loop each worker runs code of its own: the first one may write files there. If a member was lost before it
came to the meeting that the others are at, nobody knows how much of that code it ran: all members of the new generation
go back to the end of the loop and run the code behind it again.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.values import Generation, LostMember, Standing


class Taking(enum.Enum):
    """What a member does to get to where the source is."""

    KEEP = "it is already there"
    LOAD = "it takes the whole state, in the loop that it is in"
    RESULT = "it takes the result of the meeting that the source has passed"
    PAST = "it takes the whole state and goes through its script to where the source is"
    RESTART = "it runs its script again from the top to where the source is"
    START = "it begins from the newest checkpoint, or from the top where there is none"


@dataclass(frozen=True)
class Alignment:
    takings: tuple[Taking, ...]  # by rank
    source: int | None = None  # rank; None: all start
    givers: tuple[int, ...] = ()  # the source, and ranks with the same state: each may send a part
    differing: tuple[int, ...] = ()  # ranks that should have had the source's parameters, but had others
    is_hopeless: bool = False  # parameters differ and no majority tells which are right
    missed: tuple[int, ...] = ()  # workers that were lost behind a loop, so that all go back to its end

    @property
    def needs_copy(self) -> bool:
        """Whether any member takes something from the source; then all ranks take part in the copy."""
        return self.source is not None and any(taking is not Taking.KEEP for taking in self.takings)


def align(standings: Sequence[Standing], generation: Generation) -> Alignment:
    """`standings` are by rank. Only a holder that the generation names can be the source, whatever standings say."""
    named = [member.rank for member in generation.members if member.worker in generation.holders]
    holders = [rank for rank in named if standings[rank].generation > 0]
    if not holders:
        return Alignment(takings=(Taking.START,) * generation.size)
    source = _furthest(standings, holders)
    if standings[source].loop == 0:  # no loop has begun: starting together loses nothing
        return Alignment(takings=(Taking.START,) * generation.size)
    if missed := missed_behind(standings[source], generation.lost):
        standings = [at_loop_end(standing) for standing in standings]
        holders = [rank for rank in holders if not standings[rank].is_changed]
        if not holders:
            return Alignment(takings=(Taking.START,) * generation.size, missed=missed)
        source = _furthest(standings, holders)
    givers = [rank for rank in holders if rank == source or _is_there(standings[rank], standings[source])]
    digests = Counter(standings[rank].digest for rank in givers)
    right, count = digests.most_common(1)[0]
    if 2 * count <= len(givers):
        starts = (Taking.START,) * generation.size
        return Alignment(takings=starts, differing=tuple(givers), is_hopeless=True, missed=missed)
    differing = tuple(rank for rank in givers if standings[rank].digest != right)
    givers = [rank for rank in givers if standings[rank].digest == right]
    source = source if source in givers else givers[0]
    takings = tuple(
        Taking.KEEP if rank in givers else _taking(standing, standings[source], is_holder=rank in holders)
        for rank, standing in enumerate(standings)
    )
    return Alignment(takings=takings, source=source, givers=tuple(givers), differing=differing, missed=missed)


def missed_behind(source: Standing, lost: Sequence[LostMember]) -> tuple[int, ...]:
    """Workers that were lost behind a loop, in code that the source has run and they may not have.

    Earlier losses were settled when the source entered its last generation.
    """
    if source.in_loop:
        return ()
    return tuple(one.worker for one in lost if one.generation >= source.generation and one.point <= source.points)


def at_loop_end(standing: Standing) -> Standing:
    """The standing of a worker that goes back to the end of its last loop; unchanged inside a loop."""
    if standing.in_loop or standing.loop == 0:
        return standing
    return msgspec.structs.replace(standing, points=standing.end_points, in_loop=True)


def _furthest(standings: Sequence[Standing], ranks: Sequence[int]) -> int:
    return max(ranks, key=lambda rank: (*_progress(standings[rank]), not standings[rank].is_doubtful, -rank))


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
    # Outside loops, a member of the last generation can be at most one meeting behind, and is then in that meeting.
    if is_holder and standing.points + 1 == source.points and standing.step == source.step:
        return Taking.RESULT
    return Taking.RESTART
