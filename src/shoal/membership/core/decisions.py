"""What the coordinator must not forget when its process dies: decisions as values. Pure; `decision_file` writes them.

A decision is written down before anybody hears of it, so a restarted coordinator knows at least as much as any of its
clients. Not here: the job's record of events (`event_writer`), which may lose its last lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from shoal.bounds import ExitCode, Members, Name, Ordinal, Text
from shoal.values import Generation, Member


class NumberGiven(msgspec.Struct, frozen=True, tag="number-given"):
    worker: Ordinal  # all numbers up to this one are in use
    is_guest: bool = False  # the worker was added by hand, beside those that the launcher starts


class GenerationDecided(msgspec.Struct, frozen=True, tag="generation-decided"):
    generation: Generation


class CheckpointDecided(msgspec.Struct, frozen=True, tag="checkpoint-decided"):
    """The checkpoint is published, or lost for good."""

    checkpoint: Name
    is_published: bool


class FailureCounted(msgspec.Struct, frozen=True, tag="failure-counted"):
    """A script failed. Failures with the same text count as the same failure."""

    text: Text


class MemberLeft(msgspec.Struct, frozen=True, tag="member-left"):
    """A member of the current generation said goodbye. If its script is done, the job has a result."""

    worker: Ordinal
    is_handover: bool  # the worker's script is not done
    runs_on: bool = False  # the worker's function has returned, and its script still runs to its last line


class MembersReleased(msgspec.Struct, frozen=True, tag="members-released"):
    """All members of the current generation are done and no longer wait for each other. No generation follows."""

    finished: Members[Ordinal]  # workers with nothing left to run; the other scripts still run to their last lines


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
    """Whether the decision may be announced before it is on disk: forgetting that a checkpoint is lost does no harm."""
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
    running_on: tuple[Member, ...] = ()  # released before the others; their scripts have not come to their last lines
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
    """A worker that was released early may come to its last line during a later generation that it is not in."""
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
