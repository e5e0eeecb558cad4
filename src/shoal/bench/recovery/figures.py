"""What the diaries of `shoal bench recovery` mean: recovery times, goodput, cost without faults. Pure.

All times are in seconds by one clock. A diary is a list of applied steps of one worker.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.bench.verdict import Bound

# What the benchmark is judged by.
RECOVERY_MEDIAN = 1.0  # plus one normal step
RECOVERY_WORST = 3.0
REPLACEMENT = 2.0
GOODPUT = {"spare": 0.90, "no spare": 0.80}
COST = 0.02


@dataclass(frozen=True)
class Applied:
    at: float
    step: int
    generation: int
    samples: int  # of all workers


@dataclass
class Diary:
    pid: int = 0
    imported: float = 0.0  # when torch was there
    applied: list[Applied] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)  # seconds, by what they were for
    steps: int = 0  # over which they add up


def step_seconds(diary: Diary) -> float:
    """A normal step: the median between two that follow each other in one generation."""
    gaps = [
        later.at - earlier.at
        for earlier, later in zip(diary.applied, diary.applied[1:], strict=False)
        if later.generation == earlier.generation
    ]
    return statistics.median(gaps)


def recovery(diaries: Mapping[int, Diary], *, victim: int, killed: float, generation: int) -> float | None:
    """From the kill to the first step that all survivors have applied without the victim; None: not yet.

    `generation` is the one that the victim was in: a step of it may still become whole after the kill.
    """
    firsts = []
    for worker, diary in diaries.items():
        before = [one for one in diary.applied if one.at <= killed]
        if worker == victim or not before or before[-1].generation != generation:
            continue
        after = next((one.at for one in diary.applied if one.generation > generation), None)
        if after is None:
            return None
        firsts.append(after)
    return max(firsts) - killed if firsts else None


def replacement(diary: Diary) -> float | None:
    """From torch's import to its first applied step."""
    return diary.applied[0].at - diary.imported if diary.applied else None


def samples_between(diaries: Mapping[int, Diary], start: float, end: float) -> int:
    """Of steps that count: one that several workers have in their diaries counts once, in its last generation."""
    by_step: dict[int, Applied] = {}
    for diary in diaries.values():
        for one in diary.applied:
            known = by_step.get(one.step)
            if known is None or one.generation > known.generation:
                by_step[one.step] = one
    return sum(one.samples for one in by_step.values() if start < one.at <= end)


def cost_share(diary: Diary) -> float:
    """What being ready for faults takes of a step."""
    return sum(diary.costs.values()) / diary.steps / step_seconds(diary)


def bounds_of_kills(recoveries: Sequence[float], replacements: Sequence[float], step: float) -> list[Bound]:
    median, worst, slowest = statistics.median(recoveries), max(recoveries), max(replacements, default=math.inf)
    what = "a replacement, from torch's import to its first step, worst s"
    return [
        Bound("from SIGKILL to the next step, median s", median, "at most", RECOVERY_MEDIAN + step),
        Bound("from SIGKILL to the next step, worst s", worst, "at most", RECOVERY_WORST),
        Bound(what, slowest, "at most", REPLACEMENT),
    ]


def bounds_of_goodput(goodput: Mapping[str, float], cost: float) -> list[Bound]:
    """`cost`: what being ready for faults takes of a step, without any fault."""
    bounds = [Bound(f"goodput, {how}", goodput[how], "at least", limit) for how, limit in GOODPUT.items()]
    return [*bounds, Bound("cost without faults, part of a step", cost, "at most", COST)]
