"""Deliberately broken variants of the protocol are caught, each by an invariant that is there for it.

A check that never fails proves nothing. Each variant breaks one thing in live code or in what drives it, and is run
over schedules with the kinds of faults that it takes to show; the one that catches it passes without the variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shoal.job_config import JobConfig
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.decisions import Remembered
from shoal.membership.core.publishing import Publishing
from shoal.membership.generations import cuts, forming
from shoal.membership.generations.losses import Losses
from shoal.membership.member import alignment, member
from shoal.membership.member.alignment import Alignment, Taking, align
from shoal.plan.members import invariants
from shoal.plan.members import reach_check as reach
from shoal.plan.members.cluster import Parts, simulate
from shoal.plan.members.fault_schedules import FaultKind, random_schedule
from shoal.plan.members.invariants import Violation
from shoal.plan.members.model import ToyState, Trainer
from shoal.plan.members.script import Exchange, Script
from shoal.plan.members.worker_group import WorkerGroup
from shoal.values import Generation, Standing, Unreached

MOST_SCHEDULES = 150  # within which each variant must be caught

Variant = Callable[[pytest.MonkeyPatch], Parts]


def caught_by(variant: Variant, kinds: list[FaultKind], likely: int) -> str:
    """The invariant that does not hold in the first schedule that the variant breaks, from the likely one on."""
    for number in range(MOST_SCHEDULES):
        seed = (likely + number) % MOST_SCHEDULES
        schedule = random_schedule(seed, kinds=kinds)
        try:
            with pytest.MonkeyPatch.context() as patch:
                simulate(schedule, variant(patch))
        except Violation as violation:
            simulate(schedule)
            return violation.invariant
    return "nothing"


class SkippingTrainer(Trainer):
    """Leaves the last sample of a member's part out."""

    def part(self, state: ToyState, generation: Generation, rank: int) -> tuple[tuple[int, int], ...]:
        return super().part(state, generation, rank)[:-1]


class HastyScript(Script):
    """Applies a step when the part of one of its peers may still be missing."""

    def exchange(self, label: str, part: Any, wanted: Any = None) -> Exchange:
        whole = super().exchange(label, part, wanted)
        if label != "all-reduce of gradients":
            return whole
        first = next((rank for rank in whole.wanted if rank != self.in_group.rank), None)
        return dataclasses.replace(whole, wanted=tuple(rank for rank in whole.wanted if rank != first))


def skips_samples(patch: pytest.MonkeyPatch) -> Parts:
    return Parts(trainer=SkippingTrainer)


def applies_too_soon(patch: pytest.MonkeyPatch) -> Parts:
    return Parts(script=HastyScript)


def forgets_its_decisions(patch: pytest.MonkeyPatch) -> Parts:
    return Parts(remember=lambda _: Remembered())


def takes_the_least_far(patch: pytest.MonkeyPatch) -> Parts:
    def least_far(standings: Sequence[Standing], generation: Generation) -> Alignment:
        if align(standings, generation).source is None:
            return align(standings, generation)
        named = [member.rank for member in generation.members if member.worker in generation.holders]
        holders = [rank for rank in named if standings[rank].generation > 0]
        source = min(holders, key=lambda rank: standings[rank].step)
        givers = tuple(rank for rank in holders if standings[rank].step == standings[source].step)
        takings = tuple(Taking.KEEP if rank in givers else Taking.LOAD for rank in range(generation.size))
        return Alignment(takings=takings, source=source, givers=givers)

    patch.setattr(member, "align", least_far)
    return Parts()


def publishes_older_parts(patch: pytest.MonkeyPatch) -> Parts:
    part: Callable[..., None] = Publishing.part

    def any_generation(self: Publishing, worker: int, written: Any, generation: Generation, now: float) -> None:
        part(self, worker, written, msgspec.structs.replace(generation, number=written.generation), now)

    patch.setattr(Publishing, "part", any_generation)
    return Parts()


def does_not_wait_for_the_lease(patch: pytest.MonkeyPatch) -> Parts:
    def impatient(config: JobConfig, **options: Any) -> MembershipCore:
        return MembershipCore(msgspec.structs.replace(config, lease=0.0), **options)

    return Parts(core=impatient)


def lets_everybody_bring_its_state(patch: pytest.MonkeyPatch) -> Parts:
    decide = forming.decide

    def everybody_holds(situation: forming.Situation) -> forming.NextGeneration | forming.Wait:
        planned = decide(situation)
        if isinstance(planned, forming.NextGeneration) and situation.generation is not None:
            return dataclasses.replace(planned, holders=tuple(worker.number for worker in planned.workers))
        return planned

    patch.setattr(forming, "decide", everybody_holds)
    return Parts()


def blames_who_gave_up(patch: pytest.MonkeyPatch) -> Parts:
    def hasty(self: WorkerGroup, limit: float, is_over: Callable[[], bool], found: Callable[[Unreached], None]) -> None:
        peer = None if self.broken is None else self.broken.peer
        found(Unreached(() if peer is None else (self.generation.members[peer].worker,)))

    patch.setattr(WorkerGroup, "look", hasty)
    return Parts()


def keeps_who_reaches_the_fewest(patch: pytest.MonkeyPatch) -> Parts:
    def poor(candidates: Collection[int], named: Mapping[int, Collection[int]], preferred: object) -> frozenset[int]:
        chosen: set[int] = set()
        for worker in sorted(candidates, key=lambda worker: -len(named.get(worker, ()))):
            if not any(other in named.get(worker, ()) or worker in named.get(other, ()) for other in chosen):
                chosen.add(worker)
        return frozenset(chosen)

    patch.setattr(cuts, "connected_set", poor)
    return Parts()


def never_goes_back(patch: pytest.MonkeyPatch) -> Parts:
    patch.setattr(alignment, "missed_behind", lambda *_: ())
    return Parts()


def forgets_losses(patch: pytest.MonkeyPatch) -> Parts:
    patch.setattr(Losses, "add", lambda *_: None)
    return Parts()


@pytest.mark.parametrize(
    ("variant", "kinds", "likely", "caught"),  # likely: the first seed that caught it when this was written
    [
        (skips_samples, [FaultKind.JOIN], 0, {invariants.EACH_SAMPLE_ONCE}),
        (applies_too_soon, [FaultKind.SLOW], 0, {invariants.ONE_STATE}),
        (forgets_its_decisions, [FaultKind.CRASH], 1, {invariants.DECIDED_ONCE}),
        (takes_the_least_far, [FaultKind.RESET, FaultKind.KILL, FaultKind.STOP], 5, {invariants.FURTHEST}),
        (publishes_older_parts, [FaultKind.RESET, FaultKind.LAGGING], 1, {invariants.CURRENT_ONLY}),
        (does_not_wait_for_the_lease, [FaultKind.SPLIT, FaultKind.JOIN, FaultKind.CUT_OFF], 5, {invariants.ONE_GROUP}),
        (never_goes_back, [FaultKind.KILL], 2, {invariants.RUN_TO_ITS_END}),
        (forgets_losses, [FaultKind.KILL], 2, {invariants.RUN_TO_ITS_END}),
        pytest.param(
            lets_everybody_bring_its_state,
            [FaultKind.STOP, FaultKind.CUT_OFF, FaultKind.VANISH, FaultKind.KILL],
            10,
            {invariants.ONE_CHAIN, invariants.FURTHEST},
            marks=pytest.mark.long,
        ),
        (blames_who_gave_up, [FaultKind.RESET], 0, {reach.CUT_OFF_ONLY}),
        (keeps_who_reaches_the_fewest, [FaultKind.CUT_HOSTS, FaultKind.CUT_HOSTS_ONE_WAY], 0, {reach.LARGEST}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_it_is_caught(variant: Variant, kinds: list[FaultKind], likely: int, caught: set[str]) -> None:
    assert caught_by(variant, kinds, likely) in caught
