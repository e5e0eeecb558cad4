"""A worker's way into the next generation: what it says, what it waits for, whose state it takes. No I/O.

`regroup` is a generator: it yields what is to be done; whoever drives it does that and sends back what came of it, and
throws in an `ExchangeFailed` where the group broke. Training drives it with sockets, the simulator with virtual time.
A worker whose script is done waits in it too: for its release, or for a generation that needs it again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.errors import ExchangeFailed
from shoal.membership.member.alignment import Alignment, align
from shoal.values import Generation, Standing, Unreached
from shoal.wire.messages import Done, ExchangeBroken, Ready


@dataclass(frozen=True)
class Look:
    """Find out which members of the last group are missed. The answer is an `Unreached` with worker numbers."""


@dataclass(frozen=True)
class Tell:
    """Tell the coordinator; again if the connection breaks before the next generation is heard of."""

    notice: Ready | ExchangeBroken


@dataclass(frozen=True)
class Await:
    """Wait for a generation with a higher number. The answer is that generation."""

    after: int


@dataclass(frozen=True)
class Finish:
    """Tell the coordinator that this worker is done, and wait. The answer is a generation with a higher number, or None
    where this worker may go.
    """

    notice: Done


@dataclass(frozen=True)
class Connect:
    """Connect to the members of a generation that this worker is in. May fail."""

    generation: Generation


@dataclass(frozen=True)
class Compare:
    """Exchange standings in the new group. The answer has everybody's, by rank. May fail."""

    standing: Standing


@dataclass(frozen=True)
class Copy:
    """Take part in copying the source's state to those who need it. May fail."""

    alignment: Alignment


Effect = Look | Tell | Await | Finish | Connect | Compare | Copy


@dataclass(frozen=True)
class Entered:
    """The worker is in a generation whose members all know who goes on from where."""

    generation: Generation
    alignment: Alignment


def regroup(
    worker: int, notice: Ready | ExchangeBroken | Done, standing: Standing
) -> Generator[Effect, Any, Entered | None]:
    """`notice` says why this worker is in no group; `standing` is where it is, in none of the last group's steps.

    None where the worker was done, and may go.
    """
    while True:
        if isinstance(notice, Ready):  # in no generation now: what it holds may be of another chain by the next
            standing = msgspec.structs.replace(standing, generation=0)
        elif isinstance(notice, ExchangeBroken) and not notice.is_planned:
            # Whoever is blamed for the failure may only have been the first to give up: all are looked at.
            unreached: Unreached = yield Look()
            notice = msgspec.structs.replace(notice, unreached=unreached)
        generation: Generation | None
        if isinstance(notice, Done):
            generation = yield Finish(notice)
        else:
            yield Tell(notice)
            generation = yield Await(after=notice.generation)
        if generation is None:
            return None
        rank = generation.rank_of(worker)
        if rank is None:  # left out: it may come in again
            notice = again(notice, generation.number)
            continue
        if worker not in generation.carriers:
            standing = msgspec.structs.replace(standing, generation=0)
        operation = "connecting"
        try:
            yield Connect(generation)
            operation = "comparing where the members are"
            standings: tuple[Standing, ...] = yield Compare(standing)
            alignment = align(standings, generation)
            if alignment.is_hopeless:
                notice = _broken(generation, standing, operation, "parameters differ and no majority is right", None)
                notice = msgspec.structs.replace(notice, must_restore=True)
                continue
            if alignment.needs_copy:
                operation = "copying the state"
                yield Copy(alignment)
            return Entered(generation, alignment)
        except ExchangeFailed as failure:
            peer = None if failure.peer is None else generation.members[failure.peer].worker
            notice = _broken(generation, standing, operation, str(failure), peer)


def again(notice: Ready | ExchangeBroken | Done | None, generation: int) -> Ready:
    """What a worker says that was left out after this notice. A newcomer has still to compare its script's calls."""
    if isinstance(notice, Ready):
        return msgspec.structs.replace(notice, generation=generation, unreachable=())
    return Ready(generation=generation)


def _broken(
    generation: Generation, standing: Standing, operation: str, reason: str, peer: int | None
) -> ExchangeBroken:
    return ExchangeBroken(
        generation=generation.number,
        step=standing.step,
        operation=operation,
        peer=peer,
        reason=reason,
        holds=standing.generation,
    )
