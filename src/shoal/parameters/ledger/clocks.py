"""Clocks of workers, and which workers may read under a bound on staleness. Pure.

A worker's clock counts its updates. A worker may read while its clock is at most `staleness` ahead of the slowest
worker that is *at work*: one that holds positions, or is about to push. A worker that waits for positions, was told
that there are none, or has not begun yet holds nobody back: no update of it is missing. When such a worker gets
positions, its clock is raised to the slowest one at work, so that nobody waits for updates that it did not make
meanwhile. Clocks never go back, so a server that lags behind in the ledger may judge by what it has: it allows less,
never more.

Not here: meetings, which release waiting workers (`ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.bounds import ByNumber, Total


class Clock(msgspec.Struct):
    count: Total = 0  # updates
    is_at_work: bool = False


class Clocks(msgspec.Struct):
    """Clocks of a generation's members."""

    by_worker: ByNumber[Clock] = msgspec.field(default_factory=dict)

    def enrol(self, workers: Sequence[int]) -> None:
        """Forget all other workers. A new one starts at the smallest clock, and binds nobody until it has positions."""
        members = frozenset(workers)
        kept = {worker: clock for worker, clock in self.by_worker.items() if worker in members}
        start = min((clock.count for clock in kept.values()), default=0)
        self.by_worker = {worker: kept.get(worker) or Clock(start) for worker in workers}

    def tick(self, worker: int) -> None:
        self.by_worker[worker].count += 1

    def rest(self, worker: int) -> None:
        """The worker has no positions to work on."""
        self.by_worker[worker].is_at_work = False

    def work(self, worker: int) -> None:
        """The worker got positions."""
        own = self.by_worker[worker]
        if own.is_at_work:
            return
        busy = [clock.count for clock in self.by_worker.values() if clock.is_at_work]
        # If no worker is at work, start from the fastest clock: a lower one would hold up the next worker to begin.
        level = min(busy) if busy else max(clock.count for clock in self.by_worker.values())
        own.count = max(own.count, level)
        own.is_at_work = True

    def allows(self, worker: int, staleness: int) -> bool:
        """This worker is at most `staleness` ahead of every worker at work."""
        own = self.by_worker[worker].count
        return all(own - clock.count <= staleness for clock in self.by_worker.values() if clock.is_at_work)
