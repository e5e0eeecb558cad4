"""Who is in the next generation, who brings the job's state, and what is waited for. Pure.

Survivors of the last generation come first, then workers that wait to be let in, lowest numbers first, up to
`--workers`. Not here: when the last generation is over (`generation_end`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shoal.job_config import JobConfig
from shoal.membership.core import reasons
from shoal.membership.core.roster import Worker
from shoal.membership.generations.cuts import Cuts, LeftOut
from shoal.membership.generations.generation_end import Breakup
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.codec_settings import CodecSettings
from shoal.values import Generation, LostMember

COMING_WAIT = 2.0  # seconds without a new worker after which the first generation does not wait for the rest
# If the job is too small without the workers that were cut off, it tries with them again after this many seconds;
# doubles each time.
PAIRS_HOLD = 5.0
PAIRS_HOLD_MOST = 600.0


@dataclass(frozen=True)
class EarlierGenerations:
    """What the checkpoints of a resumed job say about its earlier generations."""

    generation: int = 0  # the highest number in any checkpoint
    shares: tuple[int, ...] = ()  # by rank, in the newest checkpoint


@dataclass(frozen=True)
class Situation:
    """Everything that the choice depends on."""

    config: JobConfig
    workers: Collection[Worker]  # all that ever joined
    generation: Generation | None  # the last one
    breakup: Breakup
    is_stopping: bool  # a stop was asked for: let in no newcomer that is not needed
    has_result: bool  # a member has come to its last line, and needs no replacement
    last_join: float  # when the last worker came
    despite: int  # generations in a row that formed although some members may not reach each other
    now: float


@dataclass(frozen=True)
class Wait:
    """No generation forms now."""

    workers: int  # that could be in the next generation
    needed: int
    reason: str


@dataclass(frozen=True)
class NextGeneration:
    """The next generation, without its number."""

    workers: tuple[Worker, ...]  # by rank
    holders: tuple[int, ...]
    left_out: tuple[LeftOut, ...]  # workers that cannot reach some of the others, or were late
    reason: str
    is_despite_pairs: bool = False  # some members may not reach each other, but without them there are too few


@dataclass(frozen=True)
class _Choice:
    """Who could be in the next generation."""

    survivors: list[Worker]  # of the last generation
    candidates: list[Worker]  # survivors and newcomers
    holders: tuple[int, ...]
    uncertain: tuple[int, ...]  # survivors that may hold the job's state
    cuts: Cuts

    def staying(self, waiters: Collection[int]) -> frozenset[int]:
        likely = frozenset((*self.holders, *self.uncertain))
        return self.cuts.staying([worker.number for worker in self.candidates], likely, waiters)


def decide(situation: Situation) -> NextGeneration | Wait:
    choice = _choice(situation)
    survivors, uncertain = choice.survivors, choice.uncertain
    staying, is_despite_pairs = _staying(situation, choice)
    holders = tuple(number for number in choice.holders if number in staying)
    chosen = sorted(
        (worker for worker in choice.candidates if worker.number in staying), key=lambda worker: worker.number
    )
    wait = _wait(situation, survivors, chosen)
    if wait is None and uncertain and not holders and _is_patient(situation):
        wait = Wait(len(chosen), _needed(situation), reasons.may_hold_state(uncertain))
    if wait is not None:
        return wait
    left_out = choice.cuts.left_out(choice.candidates, staying)
    late = [out.worker.number for out in left_out if not out.unreached]
    reason = _reason(situation, survivors, chosen, holders, late)
    return NextGeneration(tuple(chosen), holders, left_out, reason, is_despite_pairs)


def awaits_reports(situation: Situation) -> bool:
    """Whether reports that are still to come may change which members stay.

    Many workers notice a cut between hosts at about the same time, and it should cost one decision. The choice is final
    once all who would stay have reported whom they cannot reach: further reports only make the other sets smaller.
    """
    breakup, limit = situation.breakup, situation.config.heartbeat_limit
    age = breakup.age(situation.now)
    if not situation.config.manners.connects_workers or breakup.is_planned or age >= limit:
        return False
    choice = _choice(situation)
    waiters = _waiters(situation)
    living = {worker.number for worker in choice.survivors if situation.now - worker.heard <= limit}
    if breakup.silence is None and not choice.cuts.name_any(living):
        return False
    return not living.isdisjoint(choice.staying(waiters) - waiters)


def _waiters(situation: Situation) -> frozenset[int]:
    """Members that have reported, or are done and therefore report nothing."""
    done = {worker.number for worker in situation.workers if worker.is_done}
    return frozenset(done | situation.breakup.reports.keys())


def _choice(situation: Situation) -> _Choice:
    survivors = _survivors(situation)
    holders, uncertain = _holders_of_state(situation, survivors)
    newcomers = waiting(situation.workers, situation.now, members=survivors)
    if not holders:
        newcomers += _uncalled(situation, newcomers)
        newcomers = _enough(situation, newcomers, [worker for worker in newcomers if not worker.is_strange])
    elif situation.is_stopping:
        newcomers = []
    else:
        newcomers = _enough(situation, newcomers, compared(newcomers), there=len(survivors))
    admitted_ones = admitted(newcomers, survivors, situation.config.workers)
    cuts = Cuts.told(situation.breakup.reports, admitted_ones)
    return _Choice(survivors, survivors + admitted_ones, holders, uncertain, cuts)


def _enough(situation: Situation, newcomers: list[Worker], preferred: list[Worker], *, there: int = 0) -> list[Worker]:
    """The preferred newcomers if they are enough for the job to go on, otherwise all."""
    return preferred if there + len(preferred) >= _needed(situation) else newcomers


def _is_patient(situation: Situation) -> bool:
    return situation.breakup.age(situation.now) < situation.config.absence_limit


def _staying(situation: Situation, choice: _Choice) -> tuple[frozenset[int], bool]:
    """Workers that all reach each other. If too few do for a while, all workers, as the cut may have healed."""
    staying = choice.staying(_waiters(situation))
    hold = min(PAIRS_HOLD_MOST, PAIRS_HOLD * 2**situation.despite)
    is_old = situation.breakup.age(situation.now) >= hold
    if len(staying) < len(choice.candidates) and len(staying) < _needed(situation) and is_old:
        return frozenset(worker.number for worker in choice.candidates), True
    return staying, False


def has_state(planned: NextGeneration, situation: Situation) -> bool:
    """Whether a carrier certainly has the job's state; if not, all may have to start from the newest checkpoint."""
    known = {number for number, report in situation.breakup.reports.items() if report.holds}
    known.update(worker.number for worker in planned.workers if worker.advanced > -math.inf or worker.is_done)
    known.update(() if situation.generation is None else situation.generation.holders)
    return not known.isdisjoint(planned.holders)


def as_generation(
    number: int, chosen: NextGeneration, config: JobConfig, past: EarlierGenerations, lost: tuple[LostMember, ...] = ()
) -> Generation:
    """Recorded shares are used where the number of workers is the same."""
    size = len(chosen.workers)
    shares = past.shares if len(past.shares) == size else (1,) * size
    return Generation(
        number=number,
        members=tuple(worker.as_member(rank, shares[rank]) for rank, worker in enumerate(chosen.workers)),
        schedule=config.of(AllReduceSettings).schedule,
        codec=config.of(CodecSettings).codec,
        reason=chosen.reason,
        holders=chosen.holders,
        lost=lost if chosen.holders else (),  # workers that start from the top run everything anyway
    )


def waiting(workers: Collection[Worker], now: float, *, members: Collection[Worker] = ()) -> list[Worker]:
    """Workers in no generation that are ready and may be let in: not barred, and able to reach all members."""
    ready = [
        worker
        for worker in workers
        if worker.is_ready and worker.generation == 0 and worker.is_connected and worker.barred_until <= now
    ]
    if not any(worker.unreachable for worker in ready):
        return ready
    numbers = {worker.number for worker in members}
    return [worker for worker in ready if numbers.isdisjoint(worker.unreachable)]


def compared(newcomers: Collection[Worker]) -> list[Worker]:
    """Newcomers that have compared all calls of their scripts with the members' calls."""
    return [worker for worker in newcomers if not worker.is_ahead]


def admitted(newcomers: Collection[Worker], members: Collection[Worker], limit: int) -> list[Worker]:
    """Lowest numbers first, up to `limit` workers. Guests come on top: they were added by hand."""
    room = max(0, limit - sum(not worker.is_guest for worker in members))
    ordered = sorted(newcomers, key=lambda worker: worker.number)
    found = [worker for worker in ordered if not worker.is_guest][:room]
    return sorted(found + [worker for worker in ordered if worker.is_guest], key=lambda worker: worker.number)


def _survivors(situation: Situation) -> list[Worker]:
    """Members of the last generation that are still connected."""
    if situation.generation is None:
        return []
    number = situation.generation.number
    return [worker for worker in situation.workers if worker.generation == number and worker.is_connected]


def _holders_of_state(situation: Situation, survivors: Sequence[Worker]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Survivors that hold the state of the last generation or brought it there, and survivors that may hold it.

    A worker that was put out before may hold an older state, and a newcomer may hold none. Either is a
    holder only if it is known to have been in step.
    """
    last, breakup = situation.generation, situation.breakup
    if last is None or breakup.must_restore:
        return (), ()
    held = frozenset(last.holders)
    found: list[int] = []
    uncertain: list[int] = []
    for worker in survivors:
        report = breakup.reports.get(worker.number)
        if report is not None and report.holds == 0:
            continue
        is_in_step = worker.advanced > -math.inf or worker.is_done or worker.first_generation == last.number
        if worker.number in held or (report is None and is_in_step):
            found.append(worker.number)
        elif report is None:
            uncertain.append(worker.number)
        elif report.holds == last.number:
            found.append(worker.number)
    return tuple(sorted(found)), tuple(sorted(uncertain))


def _uncalled(situation: Situation, newcomers: Sequence[Worker]) -> list[Worker]:
    """Connected workers that have not said that they are ready: without holders there is no state to lose.

    A guest of a job that has begun is not among them: it may run another script, and is compared first.
    """
    known = {worker.number for worker in newcomers}
    return [
        worker
        for worker in situation.workers
        if worker.is_connected
        and worker.generation == 0
        and not worker.must_ask
        and not (worker.is_guest and situation.generation is not None)
        and worker.number not in known
        and situation.now - worker.heard <= situation.config.heartbeat_limit
    ]


def _needed(situation: Situation) -> int:
    config = situation.config
    if situation.generation is None:
        return config.fewest if config.min_workers else config.workers
    return 1 if situation.is_stopping or situation.has_result else config.fewest


def _wait(situation: Situation, survivors: Sequence[Worker], chosen: Sequence[Worker]) -> Wait | None:
    config, count, needed = situation.config, len(chosen), _needed(situation)
    if count < needed:
        return Wait(count, needed, reasons.too_few(count, needed, situation.breakup.reason(_numbers(survivors))))
    if survivors:
        return None
    if (text := _last_members_may_live(situation)) is not None:
        return Wait(count, needed, text)
    if count < config.workers and situation.now - situation.last_join < COMING_WAIT:
        return Wait(count, needed, "")
    return None


def _last_members_may_live(situation: Situation) -> str | None:
    """Why a generation without any member of the last one has to wait: one of those may still be at work."""
    if situation.generation is None:
        return None
    members = {member.worker for member in situation.generation.members}
    doubtful = [worker for worker in situation.workers if worker.number in members and not worker.is_out_for_sure]
    if not doubtful:
        return None
    last = max(doubtful, key=lambda worker: worker.heard)
    until = last.heard + situation.config.absence_limit + situation.config.heartbeat_limit
    if situation.now >= until:
        return None
    return reasons.may_live(last.number, situation.config.absence_limit + situation.config.heartbeat_limit)


def _reason(
    situation: Situation,
    survivors: Sequence[Worker],
    chosen: Sequence[Worker],
    holders: Sequence[int],
    late: Collection[int],
) -> str:
    if situation.generation is None:
        return reasons.joined(len(chosen), situation.config.workers)
    why = situation.breakup.reason(_numbers(survivors))
    old, new = set(_numbers(survivors)), set(_numbers(chosen))
    cut_off = reasons.left_out_of(sorted(old - new - set(late)))
    parts = [why, cut_off, reasons.too_late(sorted(old & set(late))), reasons.let_in(sorted(new - old))]
    if not holders:
        parts.append(reasons.from_checkpoint(all_new=not old & new))
    return "; ".join(part for part in parts if part) or "the members regrouped, but nobody waits any more"


def _numbers(workers: Sequence[Worker]) -> list[int]:
    return [worker.number for worker in workers]


def has_hope(situation: Situation, *, has_watchers: bool) -> bool:
    """Whether a worker can be started, or may still come by itself."""
    grace = situation.config.absence_limit + situation.config.heartbeat_limit
    return (
        has_watchers
        or not situation.workers
        or any(situation.now - worker.heard < grace for worker in situation.workers)
    )
