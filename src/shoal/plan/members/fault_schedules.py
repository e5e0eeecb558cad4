"""Faults of a simulated cluster, and random schedules of them: all of a schedule follows from its seed.

A schedule is data: what happens when, to whom. A victim is given as a fraction, which picks one of the workers that
are there at that time. Not here: carrying a schedule out (`cluster`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from shoal.job_config import JobConfig
from shoal.plan.members.model import Task
from shoal.plan.members.script import Pace

FIRST_FAULT = 0.05  # seconds: some workers have been started, and none has joined
FAULT_SECONDS = 9.0  # faults begin within this time from then on
MOST_FAULTS = 10
MOST_LATE, LATE_SECONDS = 3, 1.5  # faults once the first worker is behind its loop, and the seconds in which they begin
BURST_SECONDS = 0.6  # faults of a burst come this close to each other
MANY_HOSTS = 1000  # numbers of hosts with one endpoint start here
GRACE = 400.0  # seconds after the last fault within which the job must have finished


class FaultKind(enum.Enum):
    KILL = "a worker's process dies"
    VANISH = "a worker's machine is gone without a word"
    KILL_ALL = "all workers' processes die"
    STOP = "a worker stands still for a time"
    STOP_ALL = "all workers stand still for a time"
    SLOW = "a worker takes many times as long for its steps"
    HANG = "a worker's script stands still for a time, and its heartbeats do not"
    HAND_OVER = "a worker is told to go"
    RAISE = "a worker's script raises"
    CUT = "two workers cannot reach each other for a time"
    CUT_ONE_WAY = "one worker's words do not reach another for a time"
    CUT_HOSTS = "the workers of two hosts cannot reach each other for a time"
    CUT_HOSTS_ONE_WAY = "the words of one host's workers do not reach another host's for a time"
    CUT_OFF = "a worker and the coordinator cannot reach each other for a time"
    CUT_OFF_ONE_WAY = "a worker's words do not reach the coordinator for a time, or the other way round"
    SPLIT = "some workers cannot reach the others, nor the coordinator, for a time"
    RESET = "all connections between two workers break"
    RESET_OFF = "a worker's connection to the coordinator breaks"
    CRASH = "the coordinator's process dies, and is started again later"
    CRASH_DECIDING = "the coordinator's process dies when it next writes down a decision"
    LOSSY = "connections break now and then, for a time"
    LAGGING = "everything that is sent takes long, for a time"
    JOIN = "one more worker comes"


ALL_KINDS = (
    *FaultKind,
    FaultKind.KILL,
    FaultKind.STOP,
    FaultKind.CUT_OFF,
    FaultKind.CRASH,
)  # named twice: twice as likely


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    at: float  # seconds; of a late fault, after the first worker came behind its loop
    seconds: float  # length, for faults that last
    first: float  # 0 to 1: picks one of the present workers
    second: float  # picks another one

    def __str__(self) -> str:
        what = self.kind.name.lower().replace("_", " ")
        return f"{self.at:7.3f} s  {what:16} {self.seconds:5.2f} s  {self.first:.3f} {self.second:.3f}"


@dataclass(frozen=True)
class Schedule:
    """One simulated job and everything that happens to it."""

    seed: int
    config: JobConfig
    task: Task
    pace: Pace
    faults: tuple[Fault, ...]
    hosts: tuple[int, ...] = ()  # by worker number; workers without an entry have a host each
    late: tuple[Fault, ...] = ()  # in the code behind the loop
    missing: int = 0  # of the workers that the job begins with: these are never started

    def host_of(self, endpoint: int) -> int:
        """Of a worker, or of the coordinator or the launcher, whose numbers are negative."""
        return self.hosts[endpoint] if 0 <= endpoint < len(self.hosts) else MANY_HOSTS + endpoint

    @property
    def limit(self) -> float:
        """Virtual seconds within which the job must be over."""
        return FAULT_SECONDS + GRACE


def random_schedule(seed: int, kinds: Sequence[FaultKind] = ALL_KINDS) -> Schedule:
    """With faults of some kinds only where they are given."""
    random = Random(seed)
    workers = random.choice((1, 2, 2, 3, 3, 4, 5))
    config = JobConfig(
        workers=workers,
        min_workers=random.choice((0, 0, 1, workers)),
        heartbeat_limit=1.0,
        lease=2.0,
        hang_limit=4.0,
        max_failures=1000,
        seed=seed,
    )
    task = Task(samples=random.randint(60, 300) * workers // 2, epochs=2, batch_size=3, seed=seed)
    pace = Pace(checkpoint_every=random.choice((3, 7, 15)))
    faults = _random_faults(random, kinds, random.randint(0, MOST_FAULTS), FAULT_SECONDS)
    late = _random_faults(random, kinds, random.randint(0, MOST_LATE), LATE_SECONDS)
    hosts = tuple(random.randrange(1 + workers) for _ in range(2 * workers))  # of replacements too
    return Schedule(seed, config, task, pace, faults, hosts, late)


def _random_faults(random: Random, kinds: Sequence[FaultKind], count: int, within: float) -> tuple[Fault, ...]:
    """Single faults and bursts: a fault hurts most while another one is being mended."""
    faults: list[Fault] = []
    for _ in range(count):
        at = FIRST_FAULT + random.random() * within
        if faults and random.random() < 0.6:
            at = faults[-1].at + random.random() * BURST_SECONDS
        seconds = random.choice((0.3, 0.8, 1.5, 3.0, 6.0)) * (0.5 + random.random())
        faults.append(Fault(random.choice(kinds), at, seconds, random.random(), random.random()))
    return tuple(sorted(faults, key=lambda fault: fault.at))
