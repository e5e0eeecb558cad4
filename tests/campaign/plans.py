"""Which jobs a campaign has, with which strategy, and what is done to each. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

SERVERS = ("--strategy", "parameter-server", "--servers", "3", "--replicas", "2")
STRATEGIES = {
    "all-reduce": (),
    "synchronous servers": SERVERS,
    "bounded servers": (*SERVERS, "--consistency", "asynchronous", "--staleness", "4", "--staleness-scaling", "none"),
    "asynchronous servers": (*SERVERS, "--consistency", "asynchronous", "--staleness-scaling", "none"),
}
# What happens to a job, apart from signals. Jobs on several hosts have no launcher, so all-reduce is what they run.
TROUBLES = ("signals", "start", "end", "joiners", "disk", "cuts")
EVERYWHERE = tuple(trouble for trouble in TROUBLES if trouble != "cuts")


@dataclass(frozen=True)
class JobPlan:
    number: int
    seed: int
    strategy: str  # a key of `STRATEGIES`
    trouble: str  # one of `TROUBLES`
    signals: int  # that are sent while it runs, if it lasts long enough

    @property
    def name(self) -> str:
        return f"{self.number:03}-{self.trouble}-{self.strategy.replace(' ', '-')}"

    def draw(self) -> random.Random:
        return random.Random(self.seed)


def campaign(*, seed: int, signals: int, only: str | None = None) -> Iterator[JobPlan]:
    """Jobs without end, with so many signals each: every trouble in turn, with every strategy that it can come with."""
    names = list(STRATEGIES)
    for number in itertools.count():
        turn, place = divmod(number, len(TROUBLES))
        trouble = TROUBLES[place]
        strategy = names[(turn + place) % len(names)] if trouble in EVERYWHERE else "all-reduce"
        if only in (None, trouble):
            yield JobPlan(number, seed * 1_000_003 + number, strategy, trouble, signals)
