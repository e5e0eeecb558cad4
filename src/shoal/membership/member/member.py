"""A worker's way into the next generation: what it says, what it waits for, whose state it takes. No I/O.

`regroup` is a generator that yields effects. Its driver carries out each effect and sends the result back, or throws in
an `ExchangeFailed` where the group broke. Training drives it with sockets, the simulator with virtual time. A worker
whose script is done also waits in `regroup`: for its release, or for a generation that needs the worker again.
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
    """Find out which members of the last group are missing. The answer is an `Unreached` with worker numbers."""


@dataclass(frozen=True)
class Tell:
    """Tell the coordinator, and again if the connection breaks before a newer generation is announced."""

    notice: Ready | ExchangeBroken


@dataclass(frozen=True)
class Await:
    """Wait for a generation with a higher number. The answer is that generation."""

    after: int


@dataclass(frozen=True)
class Finish:
    """Tell the coordinator that this worker is done, and wait. The answer is a generation with a higher number, or None
    when this worker is released.
    """

    notice: Done


@dataclass(frozen=True)
class Connect:
    """Connect to the members of a generation that this worker is in. May fail."""

    generation: Generation


@dataclass(frozen=True)
class Compare:
    """Exchange standings in the new group. The answer has all of them, by rank. May fail."""

    standing: Standing


@dataclass(frozen=True)
class Copy:
    """Take part in copying the source's state to the members that need it. May fail."""

    alignment: Alignment


Effect = Look | Tell | Await | Finish | Connect | Compare | Copy


@dataclass(frozen=True)
class Entered:
    """The worker is in a generation whose members have agreed on the state to go on from."""

    generation: Generation
    alignment: Alignment


def regroup(
    worker: int, notice: Ready | ExchangeBroken | Done, standing: Standing
) -> Generator[Effect, Any, Entered | None]:
    """`notice` says why this worker is in no group; `standing` is where it is, outside any step of the last group.

    Returns None if the worker was done and is released.
    """
    while True:
        if isinstance(notice, Ready):  # in no generation: the others may have gone on from another state
            standing = msgspec.structs.replace(standing, generation=0)
        elif isinstance(notice, ExchangeBroken) and not notice.is_planned:
            # The peer that is blamed for the failure may only have been the first to give up: look at all peers.
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
        if rank is None:  # this worker was left out, and asks to be let in again
            notice = again(notice, generation.number)
            continue
        if worker not in generation.holders:
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
    """What a worker says when it was left out after this notice. A newcomer must still compare its script's calls."""
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
