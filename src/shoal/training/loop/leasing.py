"""Positions that are leased to one worker, for workers that run free.

Leases come from the strategy (`strategies.free_running`), which keeps the loop's books for all workers. Positions count
as used with the update that used them. What a lost worker had leased is leased again. Loader processes stay from lease
to lease, and get the next lease, where they can, before this one is used up.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from shoal.data.dealing import Dealing, whole_batches
from shoal.data.feed import Batch
from shoal.errors import ExchangeFailed, MeetingCalled, UsageError
from shoal.strategies.free_running import FreeRunning
from shoal.strategies.peers.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.training import texts
from shoal.training.loop.supply import LoopAtWork, Supply
from shoal.values import Cursor
from shoal.wire.ledger_entries import Told
from shoal.wire.tables import LoopTerms, Range

UPDATES_PER_LEASE = 8  # more would mean fewer requests, but more to do again when a worker dies


class Leased(Supply):
    """A step is one worker's own update."""

    def __init__(self, loop: LoopAtWork, free: FreeRunning) -> None:
        self._loop = loop
        self._free = free
        self._lease: Range | None = None  # what is left of the present lease, with the update under way
        self._ahead: Range | None = None  # leased while the present lease was worked on, and still held
        self._may_ask = False  # this worker may ask for the next lease once the present one is nearly loaded
        self._is_over = False
        self.all_know = False  # the last meeting showed that every position is used
        if loop.task.feed.samples is None:
            raise UsageError(texts.STREAM_LEASED)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def dealing(self) -> Dealing:
        task = self._loop.task
        return Dealing(rank=0, shares=(1,), batch_size=task.feed.batch_size, accumulate=task.accumulate)

    def begin(self, *, holds_state: bool) -> None:
        self._free.open_loop(self._terms())
        if holds_state:
            self._loop.session.held.know_step()

    def _terms(self) -> LoopTerms:
        loop, task, dealing, gaps = self._loop, self._loop.task, self.dealing(), self._loop.session.held.gaps
        assert task.feed.samples is not None
        samples = whole_batches(dealing, task.feed.samples) if task.feed.drop_last else task.feed.samples
        whole = min((gap.epoch for gap in gaps), default=loop.cursor.epoch)
        used_before = max(task.first_epoch, min(whole, loop.cursor.epoch))
        return LoopTerms(
            loop=loop.number,
            first_epoch=task.first_epoch,
            epochs=task.epochs,
            samples=samples,
            update=dealing.step_size,
            updates=None if task.steps is None else max(0, task.steps - (loop.session.step - loop.first_step)),
            used_before=used_before,
            done=used_ranges(used_before, loop.cursor, samples, gaps),
        )

    # One lease after the other

    def portion(self) -> Generator[Any, None, None]:
        """Work through one lease, or deal with what keeps this worker from getting one."""
        lease, self._ahead = self._ahead, None
        if lease is None:
            try:
                granted = self._free.lease(UPDATES_PER_LEASE)
            except ExchangeFailed as failure:
                self._loop.regroup(Breakage.by(failure, self._loop.session.step, "waiting for samples"))
                return
            if granted.lease is None:
                self._is_over = granted.is_over
                if not granted.is_over:
                    self._loop.meet()
                return
            lease = granted.lease
        yield from self._work(lease)

    def _work(self, lease: Range) -> Generator[Any, None, None]:
        """The updates of one lease, until it is used up or something comes between; then the rest is leased again."""
        self._lease, self._may_ask = lease, self._may_lease_ahead(lease)
        is_used_up = False
        try:
            start = Cursor(lease.epoch, lease.start)
            is_used_up = yield from self._loop.run_through(
                self._loop.task.feed.batches(start, self.dealing(), lease.stop)
            )
        finally:
            if not is_used_up:
                self._ahead = None  # the next lease goes back with the rest of this one

    def may_begin(self, batch: Batch) -> bool:
        if not self._get_values():
            return False
        assert self._lease is not None
        if self._may_ask and self._is_near(self._lease.stop - batch.cursor_after.position):
            self._may_ask = False
            return self._lease_ahead(self._lease)
        return True

    def positions(self, batch: Batch) -> tuple[Range, ...]:
        assert self._lease is not None
        return (Range(self._lease.epoch, self._lease.start, batch.cursor_after.position),)

    def applied(self, batch: Batch, iteration: Iteration) -> None:
        session, lease, commit = self._loop.session, self._lease, iteration.commit
        assert lease is not None and commit is not None
        self._lease = Range(lease.epoch, batch.cursor_after.position, lease.stop)
        session.held.apply_own(commit.step)
        session.reporter.numbered(session.step, base=commit.base, used=commit.used)

    def placed(self, told: Told) -> None:
        """A meeting has told all workers where the loop is."""
        session = self._loop.session
        session.held.take(told.updates, told.open)
        self._loop.go_to(Cursor(epoch=told.epoch, position=told.position))
        self._is_over = self.all_know = told.is_over

    def reopen(self) -> None:
        """A new generation: a lost worker's leases are to be used again, and a newcomer may know less."""
        self._is_over = self.all_know = False

    def rejoin(self) -> None:
        self.reopen()
        self._free.rejoin()

    def _get_values(self) -> bool:
        """Wait while bounded staleness holds this worker back; False where something came between."""
        try:
            self._free.await_turn()
        except MeetingCalled:
            self._loop.meet()
            return False
        except ExchangeFailed as failure:
            self._loop.regroup(Breakage.by(failure, self._loop.session.step, "waiting for slower workers"))
            return False
        return True

    # The next lease, so that its samples are loaded before this one is used up

    def _may_lease_ahead(self, lease: Range) -> bool:
        """Whether to ask for the next lease early: not where nothing is loaded ahead, nor in these two cases.

        Leases get shorter towards the end of a loop, so that no worker has much left there. Under a bound on staleness,
        a worker that asks for a lease with nothing left has its clock set to the others'; a worker that always has its
        next lease would hold them up.
        """
        loop, steps = self._loop, self._loop.task.steps
        is_whole = lease.size == UPDATES_PER_LEASE * self.dealing().step_size
        if steps is not None:  # leases do not get shorter towards a limit of steps
            share = UPDATES_PER_LEASE * loop.session.peers.group.size
            is_whole = is_whole and steps - (loop.session.step - loop.first_step) > 2 * share
        return loop.task.feed.loads_ahead > 0 and is_whole and self._free.leases_ahead

    def _is_near(self, left: int) -> bool:
        """Whether a lease with so many positions left after the present update is already loaded to its end."""
        feed = self._loop.task.feed
        return left <= feed.loads_ahead * feed.batch_size

    def _lease_ahead(self, held: Range) -> bool:
        """Ask for the next lease, if there is one to be had; False where a new generation came between."""
        try:
            granted = self._free.lease(UPDATES_PER_LEASE, (held,))
        except ExchangeFailed as failure:
            self._loop.regroup(Breakage.by(failure, self._loop.session.step, "waiting for samples"))
            return False
        self._ahead = granted.lease
        if self._ahead is not None:
            start = Cursor(self._ahead.epoch, self._ahead.start)
            self._loop.task.feed.foresee(start, self.dealing(), self._ahead.stop)
        return True


def used_ranges(first_epoch: int, cursor: Cursor, samples: int, gaps: tuple[Range, ...]) -> tuple[Range, ...]:
    """Positions that a loop at `cursor` has used: all before it but the `gaps`."""
    found = [Range(epoch, 0, samples) for epoch in range(first_epoch, cursor.epoch)]
    found += [Range(cursor.epoch, 0, cursor.position)] if cursor.position else []
    for gap in sorted(gaps):
        found = [piece for whole in found for piece in _without(whole, gap)]
    return tuple(found)


def _without(whole: Range, gap: Range) -> list[Range]:
    if gap.epoch != whole.epoch or gap.stop <= whole.start or gap.start >= whole.stop:
        return [whole]
    pieces = [Range(whole.epoch, whole.start, gap.start), Range(whole.epoch, gap.stop, whole.stop)]
    return [piece for piece in pieces if piece.size > 0]
