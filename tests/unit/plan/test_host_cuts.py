"""Cuts between hosts with several workers each, in the simulator: one decision, and the largest whole set goes on."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
import pytest

from shoal.events import GenerationFormed, WorkerExpelled
from shoal.job_config import JobConfig
from shoal.membership.member import member
from shoal.plan.members.cluster import Cluster, Parts
from shoal.plan.members.fault_schedules import Schedule
from shoal.plan.members.model import Task
from shoal.plan.members.script import Pace, Script
from shoal.values import Unreached

LIMIT = 1.0  # seconds of virtual time: the heartbeat limit
AT = 2.0  # seconds after the start
LASTS = 8.0  # seconds that a cut lasts, longer than anything that follows from it
# The simulated network gives a stream up 0.3 to 1.5 limits after its last sign of life, and members connect anew.
SOON = 3 * LIMIT

Pair = tuple[int, int]  # of hosts; what the first one sends does not reach the second


def both_ways(*pairs: Pair) -> frozenset[Pair]:
    return frozenset(pairs) | {(there, here) for here, there in pairs}


@dataclass(frozen=True)
class Story:
    sizes: tuple[int, ...]  # workers by host
    cut: frozenset[Pair]

    def __str__(self) -> str:
        """The same in every process, as names of tests must be; the order of a set is not."""
        return f"{self.sizes} without {sorted(self.cut)}"

    @property
    def hosts(self) -> tuple[int, ...]:
        return tuple(host for host, size in enumerate(self.sizes) for _ in range(size))

    def is_whole(self, workers: Collection[int]) -> bool:
        places = {self.hosts[worker] for worker in workers}
        return not any((here, there) in self.cut for here in places for there in places)

    @property
    def everybody(self) -> set[int]:
        return set(range(sum(self.sizes)))

    def is_largest(self, workers: Collection[int]) -> bool:
        """They all reach each other, and no larger set does."""
        larger = range(len(workers) + 1, len(self.everybody) + 1)
        others = (chosen for size in larger for chosen in combinations(self.everybody, size))
        return self.is_whole(workers) and not any(map(self.is_whole, others))


STORIES = [
    Story((1, 3, 4), both_ways((1, 2))),
    Story((1, 2, 1), both_ways((1, 2))),
    Story((1, 2, 1), frozenset({(1, 2)})),
    Story((1, 3, 4), frozenset({(2, 1)})),
    Story((2, 2, 2), both_ways((0, 1), (1, 2), (0, 2))),
    Story((2, 3), both_ways((0, 1))),
    Story((2, 2, 2, 1), frozenset({(0, 1), (2, 1), (3, 1)})),
]


@dataclass(frozen=True)
class Found:
    members: list[set[int]]  # of each generation from the cut on
    expelled: set[int]
    seconds: float  # from the cut until the first of those generations


def run(story: Story, seed: int, *, at: float | None, parts: Parts | None = None) -> Found:
    """What follows from the cut, for as long as it lasts. `at`: seconds after the start; None: it is there before."""
    workers = sum(story.sizes)
    config = JobConfig(workers=workers, heartbeat_limit=LIMIT, lease=4.0, hang_limit=30.0, seed=seed)
    task = Task(samples=1000 * workers, epochs=2, batch_size=3, seed=seed)
    schedule = Schedule(seed, config, task, Pace(step=0.3, checkpoint_every=1000), (), story.hosts)
    cluster = Cluster(schedule, parts or Parts())
    cluster.time.after(at or 0.0, lambda: cut(cluster, story))
    cluster.time.run((at or 0.0) + LASTS, lambda: False)
    formed = [(time, event) for time, event in cluster.events if isinstance(event, GenerationFormed)]
    started = at if at is not None else formed[0][0]
    after = [(time, event) for time, event in formed if time > started]
    expelled = {event.worker for _, event in cluster.events if isinstance(event, WorkerExpelled)}
    return Found([set(event.workers) for _, event in after], expelled, after[0][0] - started if after else LASTS)


def cut(cluster: Cluster, story: Story) -> None:
    for here, there in sorted(story.cut):
        cluster.network.links.cut(here, there, LASTS, of_hosts=True)


def costs_one_decision(story: Story, found: Found) -> bool:
    staying = found.members[0] if found.members else set()
    is_right = story.is_largest(staying) and found.expelled == story.everybody - staying
    return is_right and len(found.members) == 1 and found.seconds <= SOON


@pytest.mark.parametrize("at", [AT, None], ids=["while they train", "from the start"])
@pytest.mark.parametrize("story", STORIES, ids=str)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 30), marks=pytest.mark.long)], ids=str)
def test_a_cut_between_hosts_costs_one_decision(story: Story, at: float | None, seeds: range) -> None:
    for seed in seeds:
        found = run(story, seed, at=at)
        assert costs_one_decision(story, found), (seed, found)


class NamesOne(Script):
    """Reports one missing peer at a time, as if the others were fine."""

    def _enter(self, notice: Any) -> Generator[Any, Any, Any]:
        way = super()._enter(notice)
        answer: Any = None
        while True:
            try:
                effect = way.send(answer)
            except StopIteration as done:
                return done.value
            if isinstance(effect, member.Tell) and hasattr(effect.notice, "unreached"):
                one = Unreached(unreachable=effect.notice.unreached.unreachable[:1])
                effect = member.Tell(msgspec.structs.replace(effect.notice, unreached=one))
            answer = yield effect


def test_a_variant_that_names_one_peer_at_a_time_is_caught() -> None:
    story = STORIES[0]
    assert not costs_one_decision(story, run(story, 0, at=AT, parts=Parts(script=NamesOne)))
