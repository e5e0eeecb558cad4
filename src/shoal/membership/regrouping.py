"""The next generation: who is in it, and when a broken exchange among living members calls for one. Pure.

Members report that a collective failed; the next generation waits until all have, or a moment after the first, since
the others find out soon. Not here: deaths (`deaths`), which come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.job_config import JobConfig
from shoal.membership import reasons
from shoal.membership.deaths import REPORT_WAIT
from shoal.membership.roster import Worker
from shoal.values import Generation
from shoal.wire.messages import ExchangeBroken

FUTILE_GENERATIONS = 10  # generations in a row that broke in the same step, after which another is of no use


@dataclass(frozen=True)
class Past:
    """What the checkpoints of a job that goes on say about its earlier generations."""

    generation: int = 0  # the highest number that any of them has
    shares: tuple[int, ...] = ()  # by rank, of the generation that wrote the newest


def next_generation(previous: int, workers: Sequence[Worker], config: JobConfig, past: Past, reason: str) -> Generation:
    """These workers, ranked by their numbers. Recorded shares count where the number of workers is the same."""
    ranked = sorted(workers, key=lambda worker: worker.number)
    shares = past.shares if len(past.shares) == len(ranked) else (1,) * len(ranked)
    return Generation(
        number=previous + 1,
        members=tuple(
            msgspec.structs.replace(worker.as_member(rank), share=share)
            for rank, (worker, share) in enumerate(zip(ranked, shares, strict=True))
        ),
        schedule=config.schedule,
        codec=config.codec,
        reason=reason,
    )


class BrokenExchange:
    """The reports about the current generation, and how often generations have broken without getting anywhere."""

    def __init__(self) -> None:
        self.reports: dict[int, ExchangeBroken] = {}  # by reporting worker, in order of arrival
        self._since = 0.0  # when the first report came
        self._furthest = -1  # the furthest step that broke a generation
        self._in_a_row = 0  # generations that broke there

    def add(self, worker: int, report: ExchangeBroken, now: float) -> None:
        if not self.reports:
            self._since = now
        self.reports.setdefault(worker, report)

    def is_due(self, members: Sequence[int], now: float) -> bool:
        """`members` are the ones that can still report."""
        if not self.reports:
            return False
        return now - self._since >= REPORT_WAIT or all(member in self.reports for member in members)

    def conclude(self, members: Sequence[int]) -> str:
        """The reason for the next generation, which starts without reports."""
        reason = reasons.broken_exchange(tuple(self.reports.items()), members=members)
        step = max(report.step for report in self.reports.values())
        self._in_a_row = 1 if step > self._furthest else self._in_a_row + 1
        self._furthest = max(step, self._furthest)
        self.reports = {}
        return reason

    @property
    def is_futile(self) -> bool:
        return self._in_a_row >= FUTILE_GENERATIONS
