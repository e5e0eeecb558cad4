"""What must be true when members go on without a worker that they cannot reach; checked at every such decision.

The check knows which links are really cut; no worker and no coordinator knows that.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from shoal.events import AnyEvent, GenerationFormed, WorkerExpelled
from shoal.job_config import JobConfig
from shoal.plan.members.invariants import Violation
from shoal.plan.world.links import LinkCuts

CUT_OFF_ONLY = "nobody is left out who can reach all that go on"
LARGEST = "the largest set of members that all reach each other goes on"
WORDS = "cannot reach each other"  # in the reason with which such a worker is expelled
MOST_MEMBERS = 12  # with more, there are too many sets to look at all of them


class Reach:
    def __init__(self, links: LinkCuts, config: JobConfig) -> None:
        self._links = links
        # What was said about links when a generation broke may be so old when the next one forms.
        self._old = 3 * config.heartbeat_limit + config.absence_limit
        self._members: tuple[int, ...] = ()  # of the newest generation
        self._left_out: set[int] = set()  # since then

    def happened(self, event: AnyEvent, now: float) -> None:
        if isinstance(event, WorkerExpelled) and WORDS in event.reason:
            self._left_out.add(event.worker)
        elif isinstance(event, GenerationFormed):
            if self._left_out:
                self._check(event.workers, now - self._old)
            self._members, self._left_out = event.workers, set()

    def _check(self, formed: Collection[int], after: float) -> None:
        for worker in self._left_out:
            if not any(self._links.were_cut(worker, other, after=after) for other in formed):
                raise Violation(CUT_OFF_ONLY, f"worker {worker} reaches all of {sorted(formed)} and is left out")
        stayed = set(formed) & set(self._members)
        candidates = sorted(stayed | self._left_out & set(self._members))
        if len(candidates) <= MOST_MEMBERS:
            for size in range(len(stayed) + 1, len(candidates) + 1):
                for chosen in combinations(candidates, size):
                    if not self._has_cut(chosen, after):
                        raise Violation(LARGEST, f"{sorted(stayed)} went on, where {list(chosen)} could have")

    def _has_cut(self, workers: Collection[int], after: float) -> bool:
        return any(self._links.were_cut(one, other, after=after) for one, other in combinations(workers, 2))
