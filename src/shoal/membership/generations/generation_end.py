"""The end of a generation: reports and other signs of it, and when enough is known to form the next one. Pure.

Members report that a collective failed, processes end, members fall silent or leave. The next generation waits a moment
for more reports, so that many deaths at once cost one generation, but no longer than something can still be learnt. Not
here: who is in the next generation (`forming`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from shoal.errors import ShoalError
from shoal.membership.core import reasons
from shoal.membership.core.roster import Worker
from shoal.wire.messages import ExchangeBroken

REPORT_WAIT = 0.5  # seconds to wait for the other members' reports on a death or a broken exchange
SETTLE_WAIT = 0.2  # seconds after the last sign of a death; another within this time has the same cause
SETTLE_MOST = 2.0  # seconds after the first sign; no more signs are collected then
FUTILE_GENERATIONS = 10  # in a row that broke in the same step; after these, another generation is of no use
# Operations on the way into a generation (`member.regroup`): a failure there says nothing about the script.
ENTERING = ("connecting", "comparing where the members are", "copying the state")


class Breakup:
    """What is known about the end of the current generation."""

    def __init__(self) -> None:
        self.reports: dict[int, ExchangeBroken] = {}  # by reporting worker, in order of arrival
        self.gone: list[str] = []  # why members are gone, in order
        self.silence: tuple[int, int] | None = None  # the first worker that got no answer, and the peer it asked
        self._signs: dict[int, float] = {}  # by worker: when it seemed dead, or was put out; may be taken back
        self._waits_for_reports = False
        self.since: float | None = None  # when the first report or sign came
        self._last = 0.0  # when the last sign came

    @property
    def is_over(self) -> bool:
        """The generation is over: the next one is needed."""
        return self.since is not None

    def age(self, now: float) -> float:
        """Seconds since the first report or sign."""
        return 0.0 if self.since is None else now - self.since

    def report(self, worker: int, report: ExchangeBroken, now: float) -> None:
        if self.since is None:
            self.since = now
        self._waits_for_reports = True
        self.reports.setdefault(worker, report)

    def unanswered(self, worker: int, peer: int, now: float) -> None:
        """A worker gets no answer from a peer: reports will follow."""
        if self.since is None:
            self.since = now
        self._waits_for_reports = True
        self.silence = self.silence or (worker, peer)

    def sign(self, worker: int, now: float, *, has_witnesses: bool) -> None:
        """A member is dead, or out. `has_witnesses`: the others' collectives break, and their reports say where."""
        if self.since is None:
            self.since = now
        self._last = now
        self._signs.setdefault(worker, now)
        self._waits_for_reports = self._waits_for_reports or has_witnesses

    def take_back(self, worker: int) -> None:
        """The worker left in good order, or was heard again."""
        self._signs.pop(worker, None)
        if not self._signs and not self.reports and self.silence is None:
            self.since = None

    def is_due(self, now: float, *, is_clear: bool, is_doubtful: bool) -> bool:
        """`is_clear`: nothing more will be learnt. `is_doubtful`: further members may be about to be missed."""
        if self.since is None:
            return False
        if is_clear or now - self.since >= SETTLE_MOST:
            return True
        waited = not self._waits_for_reports or now - self.since >= REPORT_WAIT
        return waited and now - self._last >= SETTLE_WAIT and not is_doubtful

    @property
    def is_planned(self) -> bool:
        """Nothing failed: the members met to let somebody in."""
        is_fine = not self.gone and self.silence is None
        return is_fine and all(report.is_planned for report in self.reports.values())

    @property
    def must_restore(self) -> bool:
        return any(report.must_restore for report in self.reports.values())

    def disagreement(self, finished: Sequence[Worker]) -> ShoalError | None:
        """How the others' reports contradict members that say they are done.

        A member that passed its last meeting may finish its script although the same meeting broke for another member,
        which has yet to meet the rest again. That is no disagreement.
        """
        reports = {
            worker: report
            for worker, report in self.reports.items()
            if not report.is_planned and report.operation not in ENTERING
        }
        if not finished or not reports or self.gone:
            return None
        passed = min(worker.points for worker in finished)
        is_ending = all(report.at_end or 0 < report.point <= passed for report in reports.values())
        if is_ending and {report.step for report in reports.values()} == {worker.step for worker in finished}:
            return None
        reporter, report = next(iter(reports.items()))
        return reasons.finished_before(finished[0].number, reporter, report)

    def reason(self, members: Sequence[int]) -> str:
        """Why the next generation forms. `members` are the living members."""
        if self.gone:
            return "; ".join(self.gone[:3]) + (f"; and {len(self.gone) - 3} more" if len(self.gone) > 3 else "")
        if self.is_planned:
            return ""
        if self.silence is not None and not self.reports:
            return reasons.unanswered(*self.silence)
        return reasons.broken_exchange(tuple(self.reports.items()), members=members)


class Futility:
    """How often generations broke, or the whole job went back to a checkpoint, without an applied step."""

    def __init__(self) -> None:
        self._step = -1  # in which the last generation broke
        self._in_a_row = 0  # generations that broke in that step
        self._furthest = -1  # the furthest step of any worker before the job went back
        self._lives = 0  # times in a row that the job went back without getting further

    def is_reached(self, breakup: Breakup, workers: Collection[Worker], *, has_holders: bool) -> bool:
        """Whether another generation is of no use. Counts generations that break, not workers that come and go."""
        if breakup.is_planned or (breakup.gone and has_holders):
            return False
        has_advanced = any(worker.advanced > -math.inf for worker in workers)
        step = max((report.step for report in breakup.reports.values()), default=0)
        self._in_a_row = 1 if has_advanced or step > self._step else self._in_a_row + 1
        self._step = step
        if not has_holders:
            furthest = max((worker.step for worker in workers), default=0)
            self._lives = 1 if furthest > self._furthest else self._lives + 1
            self._furthest = max(furthest, self._furthest)
        return self._in_a_row >= FUTILE_GENERATIONS or self._lives >= FUTILE_GENERATIONS


def is_clear(members: Collection[Worker], breakup: Breakup, *, has_watchers: bool) -> bool:
    """Nothing more will be learnt: every member has reported, or has died in a known way."""
    return all(is_accounted(worker, breakup, has_watchers=has_watchers) for worker in members)


def is_accounted(worker: Worker, breakup: Breakup, *, has_watchers: bool) -> bool:
    if not worker.is_here:
        return True
    # If the connection is still open, an exit waits for it to close: a `Leave` may still be on its way.
    if worker.client is None:
        return worker.exit_code is not None or not (worker.is_awaited or has_watchers)
    return (worker.is_done or worker.number in breakup.reports) and worker.exit_code is None
