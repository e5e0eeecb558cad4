"""What the coordinator must not forget when its process dies: decisions as values. Pure; the file is in `ledger`.

A decision is written down before anybody hears of it, so a coordinator that starts again knows at least as much as
anybody else. Not here: the job's record of events (`journal`), which may lose its last lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from shoal.bounds import ExitCode, Members, Name, Ordinal, Text
from shoal.values import Generation, Member


class NumberGiven(msgspec.Struct, frozen=True, tag="number-given"):
    worker: Ordinal  # up to this one, numbers are in use
    is_guest: bool = False  # somebody adds this worker to those that the launcher starts


class GenerationDecided(msgspec.Struct, frozen=True, tag="generation-decided"):
    generation: Generation


class CheckpointDecided(msgspec.Struct, frozen=True, tag="checkpoint-decided"):
    """It is published, or lost for good."""

    checkpoint: Name
    is_published: bool


class FailureCounted(msgspec.Struct, frozen=True, tag="failure-counted"):
    """A script failed, with a text by which another failure is known to be the same."""

    text: Text


class MemberLeft(msgspec.Struct, frozen=True, tag="member-left"):
    """A member of the current generation said goodbye. If its script is done, the job has a result."""

    worker: Ordinal
    is_handover: bool  # its script is not done
    runs_on: bool = False  # its function has returned, and its script runs on to its last line


class MembersReleased(msgspec.Struct, frozen=True, tag="members-released"):
    """All members of the current generation are done: nobody waits for anybody any more, and none is formed again."""

    # Workers of which nothing is left to run; the others' scripts run on to their last lines.
    finished: Members[Ordinal]


class StopDecided(msgspec.Struct, frozen=True, tag="stop-decided"):
    reason: Text
    exit_code: ExitCode


class EndDecided(msgspec.Struct, frozen=True, tag="end-decided"):
    """The job is over; a coordinator that starts again only says so."""

    exit_code: ExitCode
    error: Name
    text: Text


Decision = (
    NumberGiven
    | GenerationDecided
    | CheckpointDecided
    | FailureCounted
    | MemberLeft
    | MembersReleased
    | StopDecided
    | EndDecided
)


def may_wait(decision: Decision) -> bool:
    """Whether it may be told before it is on disk: a lost checkpoint is lost, and forgetting that does no harm."""
    return isinstance(decision, CheckpointDecided) and not decision.is_published


@dataclass(frozen=True)
class Remembered:
    """All decisions of a job so far, added up."""

    generation: Generation | None = None
    highest_worker: int = -1
    guests: frozenset[int] = frozenset()
    settled: tuple[tuple[str, bool], ...] = ()  # checkpoints and whether they were published, oldest first
    failures: tuple[str, ...] = ()
    left: tuple[tuple[int, bool], ...] = ()  # members of the generation that left, and whether they handed over
    running_on: tuple[Member, ...] = ()  # they were released before the others, and their last lines are still to run
    has_result: bool = False  # a member's script is done
    is_released: bool = False  # all members of the generation were done
    stop: StopDecided | None = None
    end: EndDecided | None = None


def add_up(decisions: Iterable[Decision]) -> Remembered:
    known = Remembered()
    for decision in decisions:
        match decision:
            case NumberGiven():
                guests = known.guests | {decision.worker} if decision.is_guest else known.guests
                known = replace(known, highest_worker=max(known.highest_worker, decision.worker), guests=guests)
            case GenerationDecided():
                known = replace(known, generation=decision.generation, left=())
            case CheckpointDecided():
                known = replace(known, settled=(*known.settled, (decision.checkpoint, decision.is_published))[-64:])
            case FailureCounted():
                known = replace(known, failures=(*known.failures, decision.text))
            case MemberLeft():
                known = _left(known, decision)
            case MembersReleased():
                left = (*known.left, *((worker, False) for worker in decision.finished))
                known = replace(known, left=left, has_result=True, is_released=True)
            case StopDecided():
                known = replace(known, stop=decision)
            case EndDecided():
                known = replace(known, end=decision)
    return known


def _left(known: Remembered, decision: MemberLeft) -> Remembered:
    """Whoever was released before the others may come to its last line in a later generation, without it."""
    members = () if known.generation is None else known.generation.members
    is_in = any(member.worker == decision.worker for member in members)
    running_on = tuple(member for member in known.running_on if member.worker != decision.worker)
    if decision.runs_on:
        running_on += tuple(member for member in members if member.worker == decision.worker)
    return replace(
        known,
        left=(*known.left, (decision.worker, decision.is_handover)) if is_in else known.left,
        running_on=running_on,
        has_result=known.has_result or not decision.is_handover,
    )
