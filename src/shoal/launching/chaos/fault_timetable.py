"""When the faults of `--chaos` strike, and whom. Pure: the caller passes the time and who is there.

Everything is drawn from the job's seed: the same seed strikes at the same times, counted from the first generation, and
makes the same choice among the same processes. A fault that finds nobody to strike is left out. Not here: the meaning
of the words (`clauses`), and causing the fault (`laboratory`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.launching.chaos.clauses import VERBS, Clause

JITTER = 0.1  # of the time between two faults: each may come this much sooner or later
BETWEEN_TWO = ("cut", "slow")  # verbs about a link between two workers


@dataclass(frozen=True)
class Strike:
    """One fault, now."""

    verb: str  # a key of `chaos.VERBS`
    worker: int | None  # None: the coordinator, every worker's disk, or a server
    seconds: float | None
    peer: int | None  # at the other end of the link
    rate: float | None  # bytes per second
    reason: str  # the clause
    server: int | None = None


@dataclass(frozen=True)
class Present:
    """Who can be struck at the moment."""

    here: tuple[int, ...]  # members of the current generation whose processes run on this machine
    members: tuple[int, ...]  # all members of the current generation
    step: int  # applied steps
    servers: tuple[int, ...] = ()  # parameter servers in the group whose processes run on this machine


class FaultTimetable:
    def __init__(self, clauses: Sequence[Clause], *, seed: int) -> None:
        self._clauses = clauses
        self._seed = seed
        self._begun: float | None = None
        self._next = [1] * len(clauses)  # by clause: which of its faults comes next, counted from 1

    def begin(self, now: float) -> None:
        """The first generation has formed. Later calls change nothing."""
        self._begun = now if self._begun is None else self._begun

    @property
    def next_due(self) -> float | None:
        """When the next fault strikes, apart from faults that wait for a step."""
        return min((due for index in range(len(self._clauses)) if (due := self._due(index)) is not None), default=None)

    def take_due(self, now: float, present: Present) -> list[Strike]:
        """The faults that strike now."""
        faults: list[Strike] = []
        if self._begun is None:
            return faults
        for index, clause in enumerate(self._clauses):
            number = self._next[index]
            if clause.step is not None:
                is_due = number == 1 and present.step >= clause.step
            else:
                due = self._due(index)
                is_due = due is not None and now >= due
            if is_due:
                faults += self._strike(index, number, present)
                self._next[index] = number + 1
                # A caller that did not look for a while has missed some faults: skip them.
                while (due := self._due(index)) is not None and due <= now:
                    self._next[index] += 1
        return faults

    def _due(self, index: int) -> float | None:
        clause, number = self._clauses[index], self._next[index]
        if self._begun is None:
            return None
        if clause.at is not None:
            return self._begun + clause.at if number == 1 else None
        if clause.every is None:
            return None
        jitter = self._draws(index, number).uniform(-JITTER, JITTER)
        return self._begun + clause.every * (number + jitter)

    def _strike(self, index: int, number: int, present: Present) -> list[Strike]:
        clause, draws = self._clauses[index], self._draws(index, -number)
        if not VERBS[clause.verb].has_target:
            return [Strike(clause.verb, None, clause.seconds, None, clause.rate, clause.text)]
        there = present.servers if clause.target == "server" else present.here
        candidates = [one for one in sorted(there) if clause.number in (None, one)]
        faults = []
        for victim in draws.sample(candidates, min(clause.count, len(candidates))):
            if clause.target == "server":
                faults.append(Strike(clause.verb, None, clause.seconds, None, clause.rate, clause.text, server=victim))
                continue
            peer = None
            if clause.verb in BETWEEN_TWO:
                others = [worker for worker in sorted(present.members) if worker != victim]
                if not others:
                    continue
                peer = draws.choice(others)
            faults.append(Strike(clause.verb, victim, clause.seconds, peer, clause.rate, clause.text))
        return faults

    def _draws(self, index: int, number: int) -> random.Random:
        """A random source for each fault, so that the draws of one do not change those of others."""
        return random.Random(f"{self._seed} {index} {number}")
