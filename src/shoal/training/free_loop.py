"""A loop over data whose workers run free: each leases positions, and nobody waits for another between updates.

Positions are leased from the job's ledger on the servers and count as used with the update that used them. All
workers meet only when one of them calls for it: to save, to let somebody in or go, to stop; and at the loop's end. A
lost worker costs the others no more than forming a new generation; what it had leased is leased again. Loader processes
stay from lease to lease, and where they can, have the next one before this one is used up.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import msgspec
import torch

from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.data.dealing import Dealing, whole_batches
from shoal.data.feed import Batch
from shoal.errors import ExchangeFailed, MeetingCalled, UsageError
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.training.checkpointing import save_after_step
from shoal.training.devices import moved
from shoal.training.loop import Loop
from shoal.training.loop_plan import LoopPlan
from shoal.training.recovery import recover, undo_void
from shoal.training.session import Session
from shoal.values import Cursor
from shoal.wire.ledger_entries import Told
from shoal.wire.tables import LoopTerms, Range

UPDATES_PER_LEASE = 8  # that a worker asks for: fewer questions, and more to do again when it dies


class FreeLoop(Loop):
    def __init__(self, session: Session, plan: LoopPlan) -> None:
        super().__init__(session, plan)
        assert isinstance(session.strategy, ParameterServer)
        self._servers = session.strategy
        self._ahead: Range | None = None  # leased while the present lease was worked on, and still held
        self._is_over = False  # every position is used, as far as this worker knows
        self._all_know = False  # it was so in the last meeting
        if plan.feed.samples is None:
            raise UsageError(
                "the data are a stream of unknown length, which cannot be leased to workers that run free; use "
                "--consistency synchronous, or data with __getitem__ and __len__"
            )

    def dealing(self) -> Dealing:
        """An update is one worker's own."""
        return Dealing(rank=0, shares=(1,), batch_size=self._plan.feed.batch_size, accumulate=self._plan.accumulate)

    @property
    def _is_done(self) -> bool:
        return self._is_over

    def _start(self, point: str) -> None:
        super()._start(point)
        self._servers.client.plan(self._terms())
        self._session.agreed_step = self._session.step

    def _prepare(self, *, holds_state: bool) -> None:
        super()._prepare(holds_state=holds_state)
        if not holds_state:  # the others have planned it; this worker's servers must know which loop it speaks of
            self._servers.client.plan(self._terms())

    def _terms(self) -> LoopTerms:
        feed, dealing, plan = self._plan.feed, self.dealing(), self._plan
        assert feed.samples is not None
        samples = whole_batches(dealing, feed.samples) if feed.drop_last else feed.samples
        whole = min((gap.epoch for gap in self._session.gaps), default=self.cursor.epoch)
        used_before = max(plan.first_epoch, min(whole, self.cursor.epoch))
        return LoopTerms(
            loop=self._number,
            first_epoch=plan.first_epoch,
            epochs=plan.epochs,
            samples=samples,
            update=dealing.step_size,
            updates=None if plan.steps is None else max(0, plan.steps - (self._session.step - self.first_step)),
            used_before=used_before,
            done=used_ranges(used_before, self.cursor, samples, self._session.gaps),
        )

    # Between updates

    def _epoch(self) -> Generator[Any, None, None]:
        """One lease, or what keeps this worker from getting one."""
        session = self._session
        lease, self._ahead = self._ahead, None
        if lease is not None:
            yield from self._work(lease)
            return
        try:
            granted = self._servers.lease(UPDATES_PER_LEASE)
        except ExchangeFailed as failure:
            self._regroup(Breakage.by(failure, session.step, "waiting for samples"))
            return
        if granted.lease is not None:
            yield from self._work(granted.lease)
        elif granted.is_over:
            self._is_over = True
        else:
            self._meet()

    def _work(self, lease: Range) -> Generator[Any, None, None]:
        """The updates of one lease, until it is used up or something comes between; then the rest is leased again."""
        batches = self._plan.feed.batches(Cursor(lease.epoch, lease.start), self.dealing(), lease.stop)
        self._is_step_start, self._weight, begins = True, 0.0, lease.start
        self._mark = time.perf_counter()
        is_used_up, may_ask = False, self._may_lease_ahead(lease)
        try:
            for batch in batches:
                if self._is_step_start and not self._get_values():
                    return
                stops = batch.cursor_after.position
                if may_ask and self._is_step_start and self._is_near(lease.stop - stops):
                    may_ask = False
                    if not self._lease_ahead(Range(lease.epoch, begins, lease.stop)):
                        return
                self._servers.using = (Range(lease.epoch, begins, stops),)
                iteration = self._begin(batch)
                begun = time.perf_counter()
                yield moved(batch.data, self._session.device)
                if self._end(batch, iteration, begun) or self._session.stopped is not None:
                    return
                begins = stops if batch.is_last else begins
            is_used_up = True
        finally:
            batches.close()
            if not is_used_up:
                self._ahead = None  # it goes back with the rest

    # The next lease, so that its samples are loaded before this one is used up

    def _may_lease_ahead(self, lease: Range) -> bool:
        """Not where nothing is loaded ahead anyway, nor in these two cases:

        Leases get shorter towards the end of a loop, so that nobody has much left there. Under a bound on staleness, a
        worker's clock is set to that of the others when it comes for its next lease with nothing left; one that always
        has the next would hold them up.
        """
        session, steps = self._session, self._plan.steps
        is_whole = lease.size == UPDATES_PER_LEASE * self.dealing().step_size
        if steps is not None:  # leases are not shorter before such an end
            share = UPDATES_PER_LEASE * session.peers.group.size
            is_whole = is_whole and steps - (session.step - self.first_step) > 2 * share
        is_bounded = session.config.staleness_bound is not None
        return self._plan.feed.loads_ahead > 0 and is_whole and not is_bounded

    def _is_near(self, left: int) -> bool:
        """Whether a lease of which so many positions are left after the present update is loaded to its end."""
        return left <= self._plan.feed.loads_ahead * self._plan.feed.batch_size

    def _lease_ahead(self, held: Range) -> bool:
        """Ask for the next lease, if there is one to be had; False where a new generation came between."""
        try:
            granted = self._servers.lease(UPDATES_PER_LEASE, (held,))
        except ExchangeFailed as failure:
            self._regroup(Breakage.by(failure, self._session.step, "waiting for samples"))
            return False
        self._ahead = granted.lease
        if self._ahead is not None:
            start = Cursor(self._ahead.epoch, self._ahead.start)
            self._plan.feed.foresee(start, self.dealing(), self._ahead.stop)
        return True

    def _get_values(self) -> bool:
        """Wait for what bounded staleness makes this worker wait for; False where it is called away."""
        try:
            self._servers.await_turn()
        except MeetingCalled:
            self._meet()
            return False
        except ExchangeFailed as failure:
            self._regroup(Breakage.by(failure, self._session.step, "waiting for slower workers"))
            return False
        return True

    def _end(self, batch: Batch, iteration: Iteration, begun: float) -> bool:
        """Settle the update; returns whether something came between, so that the rest must be leased again."""
        resumed, session = time.perf_counter(), self._session
        held_up = session.saver.blocked - self._blocked
        session.end()
        self._weight = 0.0 if batch.is_last else iteration.step_weight
        self._is_step_start = batch.is_last
        if batch.is_last and not iteration.is_void:
            session.step = max(session.step, self._servers.updates)
            base, used = self._servers.so_far
            session.reporter.numbered(session.step, base=base, used=used)
        if iteration.breakage is not None:
            if iteration.is_void:
                undo_void(session, iteration)
            self._regroup(iteration.breakage)
        elif batch.is_last:
            self._call_if_needed(iteration)
        self._account(batch, iteration, begun=begun, resumed=resumed, held_up=held_up)
        if batch.is_last and iteration.breakage is None:
            return self._heed()
        return iteration.breakage is not None

    def _call_if_needed(self, iteration: Iteration) -> None:
        """Something that only all workers together can do: they are called at the end of their present update."""
        session, votes, peers = self._session, self._session.replica.votes, self._session.peers
        session.saver.vote(votes, step=session.step)
        wishes = {
            "a checkpoint is due": votes.save and not votes.busy,
            "a stop was asked for": votes.stop is not None or peers.stop_wish() is not None,
            "a worker hands its place over": peers.leave_wish() is not None,
            "somebody waits to be let in": peers.regroup_wish() is not None,
        }
        reason = next((text for text, is_wished in wishes.items() if is_wished), None)
        if reason is None or self._servers.is_called:
            return
        try:
            self._servers.call(reason)
        except ExchangeFailed as failure:
            iteration.mark_broken("calling a meeting", failure)
            assert iteration.breakage is not None
            self._regroup(iteration.breakage)

    def _heed(self) -> bool:
        """Whether there was a meeting, or a new generation, after this update."""
        peers = self._session.peers
        if (news := peers.interruption()) is not None:
            self._regroup(Breakage(self._session.step, "an update", news, None))
            return True
        if self._servers.is_called:
            self._meet()
            return True
        return False

    # Meetings

    def _meet(self) -> None:
        session, votes = self._session, self._session.replica.votes
        point = f"meeting in loop {self._number}"
        session.saver.vote(votes, step=session.step)
        votes.leaving_seen, votes.regroup_seen = 0, False
        try:
            session.agree(point)
            self._look_together(point)
            self._servers.attended()
            save_after_step(session, self.cursor)
            over = torch.zeros(1)
            session.peers.group.all_reduce(over, label=f"{point}, its end").wait()  # nobody changes what others save
        except ExchangeFailed as failure:
            self._regroup(Breakage.by(failure, session.step, point))
            return
        if session.stopped is None:
            iteration = Iteration(session.step, 0.0, 0.0, 0)
            self._heed_wishes(iteration)
            if iteration.breakage is not None:
                self._regroup(iteration.breakage)

    def _look_together(self, point: str) -> None:
        """Nobody has an update under way: all learn from the first worker where the loop is, and take in the values."""
        session, group = self._session, self._session.peers.group
        own = msgspec.msgpack.encode(self._servers.ask()) if group.rank == 0 else b""
        told = msgspec.msgpack.decode(broadcast_bytes(own, 0, group, label=f"{point}, where it is"), type=Told)
        self._servers.look(told)
        session.step = session.agreed_step = told.updates
        self.cursor = Cursor(epoch=told.epoch, position=told.position)
        session.gaps = told.open
        self._is_over = self._all_know = told.is_over

    def _regroup(self, breakage: Breakage) -> None:
        session = self._session
        session.is_doubtful = False
        self._is_over = self._all_know = False  # what a lost worker had leased is to be used
        while True:
            self.cursor = recover(session, breakage, self.cursor).cursor
            try:
                self._servers.rejoin()
                return
            except ExchangeFailed as failure:
                breakage = Breakage.by(failure, session.step, "coming back to the servers")

    def _finished_everywhere(self) -> bool:
        """All positions are used, or a stop was agreed on: everybody takes in the last values before they compare."""
        if self._session.stopped is None and not self._all_know:
            self._meet()
        if self._session.stopped is None and not self._all_know:
            return False
        if super()._finished_everywhere():
            return True
        self._is_over = self._all_know = False  # in a new generation: somebody may have come who does not know
        return False


def used_ranges(first_epoch: int, cursor: Cursor, samples: int, gaps: tuple[Range, ...]) -> tuple[Range, ...]:
    """What a loop has used that is at `cursor`, with `gaps` before it."""
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
