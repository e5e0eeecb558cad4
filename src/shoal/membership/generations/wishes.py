"""Asking the members of a generation to regroup because newcomers wait to be let in. Pure.

Every regrouping stops all members for a moment. So newcomers that come together are let in together: while others are
on their way, those that are ready wait for them, for a bounded time, and the members train on meanwhile. Not here: who
may be let in (`forming`). A generation that a failure has ended waits for no newcomer (`generation_end`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shoal import events
from shoal.job_config import JobConfig
from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.roster import Worker
from shoal.membership.generations import forming
from shoal.wire.messages import RegroupWish

# Seconds that newcomers which are ready wait for others: as long as the last regrouping has cost the members, within
# these bounds. Whoever comes later than that is worth a regrouping of its own.
LEAST_HOLD = 1.0
MOST_HOLD = 10.0
EXPECTED_SECONDS = 30.0  # after its number was given, a worker that has not joined is not expected any more


@dataclass(frozen=True)
class Company:
    """The members of the current generation, and everybody else who is there."""

    workers: Collection[Worker]  # all that ever joined
    members: Collection[Worker]
    generation: int
    clients: tuple[int, ...]  # of the members


@dataclass(frozen=True)
class Hold:
    """Whether newcomers that are ready wait for others, and why."""

    is_on: bool
    reason: str


def hold(ready: Collection[int], coming: Collection[int], *, waited: float, limit: float) -> Hold:
    """`waited`: seconds since the first of the newcomers was ready. `limit`: the most that it waits for others."""
    if coming and waited < limit:
        return Hold(True, reasons.held(sorted(ready), sorted(coming), limit))
    return Hold(False, reasons.wants_in(sorted(ready)) + reasons.not_awaited(sorted(coming), limit))


class RegroupWishes:
    def __init__(self, audience: Audience, config: JobConfig) -> None:
        self._audience = audience
        self._config = config
        self._reason = ""  # what the members of this generation were told; empty: nothing
        self._since: float | None = None  # when the first newcomer that waits was ready
        self._has_told = False  # that newcomers wait for others
        self._expected: dict[int, tuple[float, bool]] = {}  # numbers given: when, and whether to a guest
        self._cost = 0.0  # seconds from the end of a generation to the first step of the next one, last time
        self._under_way: tuple[int, float] | None = None  # a generation without a step yet, and when the last one ended

    # Who comes

    def expect(self, number: int, now: float, *, is_guest: bool) -> None:
        """A number was given to a worker that will join."""
        self._expected[number] = (now, is_guest)

    def forget(self, number: int) -> None:
        """The worker has joined, or its process has ended."""
        self._expected.pop(number, None)

    def _coming(self, there: Company, ready: Collection[Worker], now: float) -> list[int]:
        """Newcomers that are on their way and for which there is a place beside those that are ready."""
        self._expected = {n: told for n, told in self._expected.items() if now - told[0] < EXPECTED_SECONDS}
        found = [(worker.number, worker.is_guest) for worker in there.workers if self._is_coming(worker, now)]
        found += [(number, is_guest) for number, (_, is_guest) in self._expected.items()]
        taken = sum(not worker.is_guest for worker in (*there.members, *ready))
        places = max(0, self._config.workers - taken)
        own = sorted(number for number, is_guest in found if not is_guest)[:places]
        return own + [number for number, is_guest in found if is_guest]

    def _is_coming(self, worker: Worker, now: float) -> bool:
        """A worker that was put out before may be anywhere: it is let in when it says that it is ready."""
        is_outside = worker.generation == 0 and not worker.is_ready and not worker.must_ask
        return is_outside and worker.is_connected and now - worker.heard <= self._config.heartbeat_limit

    # What the members are told

    def consider(self, there: Company, now: float) -> None:
        """Ask the members once in each generation, when newcomers wait and no others are to be waited for."""
        if self._reason:
            return
        waiting = forming.compared(forming.waiting(there.workers, now, members=there.members))
        ready = forming.admitted(waiting, there.members, self._config.workers)
        if not ready:
            self._since, self._has_told = None, False
            return
        since = self._since = now if self._since is None else self._since
        numbers = [worker.number for worker in ready]
        limit = max(LEAST_HOLD, min(MOST_HOLD, self._cost))
        decided = hold(numbers, self._coming(there, ready, now), waited=now - since, limit=limit)
        if not decided.is_on:
            self._reason = decided.reason
            self._tell(there.clients, there.generation)
        elif not self._has_told:
            self._has_told = True
            self._audience.record(events.NewcomersHeld(workers=tuple(sorted(numbers)), reason=decided.reason))

    def remind(self, client: int, *, generation: int) -> None:
        """A member is back and may have missed the wish."""
        if self._reason:
            self._tell((client,), generation)

    def _tell(self, clients: tuple[int, ...], generation: int) -> None:
        self._audience.send(clients, RegroupWish(generation=generation, reason=self._reason))

    # What a regrouping costs

    def over(self, generation: int, ended: float | None) -> None:
        """The members have regrouped. `ended`: when the last generation was seen to end."""
        self._reason, self._since, self._has_told = "", None, False
        self._under_way = None if ended is None else (generation, ended)

    def stepped(self, generation: int, now: float) -> None:
        """A step was applied in this generation."""
        if self._under_way is not None and generation >= self._under_way[0]:
            self._cost = now - self._under_way[1]
            self._under_way = None
