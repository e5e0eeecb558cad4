"""One loop over data: yields batches, settles each step when the next batch is asked for, redoes void ones.

Everything that needs peers besides gradients happens here, inside the generator's `next()`: agreement on stopping,
regrouping, copying. All workers leave a loop at the same step; one that leaves early is told so, by name.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from shoal.data.dealing import Dealing
from shoal.data.feed import Batch
from shoal.errors import CheckpointUnusable, ExchangeFailed, UsageError
from shoal.events import EpochEnded, LoopStarted
from shoal.strategies.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.training.call_terms import loop_terms
from shoal.training.checkpointing import save_after_step, save_asked, save_on_handover, save_on_stop
from shoal.training.devices import moved
from shoal.training.loop_length import LoopLength, Place
from shoal.training.loop_plan import LoopPlan
from shoal.training.meetings import end_of_loop, leave_loop, load_behind, meet, settle, take_past
from shoal.training.recovery import enter, recover, tell_batch, undo_void
from shoal.training.resume import check_place
from shoal.training.session import HandedOver, Past, Session
from shoal.training.state import forget_changed, load_state
from shoal.values import Cursor, TimeShares
from shoal.wire.tables import Range


class Loop:
    def __init__(self, session: Session, plan: LoopPlan) -> None:
        self._session = session
        self._plan = plan
        self._number = 0  # in program order, given when the loop starts
        self.first_step = 0
        self.cursor = Cursor(epoch=plan.first_epoch)
        self._last_epoch = plan.first_epoch + plan.epochs - 1
        self._weight = 0.0  # of the batches of the current step before the current one
        self._is_step_start = True
        self._reached = 0  # position after the last batch
        self._is_in_gap = False  # the present step's positions are before the cursor
        self._mark = time.perf_counter()  # end of the last iteration
        self._own_samples = 0  # of this worker in the current step so far
        self._input = 0.0  # seconds that the current batch was waited for
        self._blocked = 0.0  # seconds that checkpoints had held the script up when the last iteration ended

    def dealing(self) -> Dealing:
        """How steps are dealt out in the present generation."""
        peers, config = self._session.peers, self._session.config
        return Dealing(
            rank=peers.group.rank,
            shares=tuple(member.share for member in peers.generation.members),
            batch_size=self._plan.feed.batch_size,
            accumulate=self._plan.accumulate,
            workers=config.workers if config.resize == "global-batch" else 0,
        )

    def run(self) -> Generator[Any, None, None]:
        """What the user's `for` iterates over."""
        session = self._session
        settle(session)
        if session.iteration is not None:
            raise UsageError(
                "a loop over batches starts while another one is open; finish that one, or leave it by `break`, first"
            )
        if session.stopped is not None:
            return
        session.script.make("loop", loop_terms(self._plan))
        enter(session)
        session.loop = self
        self._number, self.first_step, self._blocked = session.loops + 1, session.step, session.saver.blocked
        if session.is_catching_up and self._is_past(session.past):
            session.loops += 1
            session.points += 2  # its start and its end
            load_behind(session)
            session.seed_outside()
            return
        self._check_optimizers()
        self._come_in()
        session.loops, session.loop_end = self._number, None
        session.in_loop = session.has_begun = True
        tell_batch(session)
        try:
            while True:
                while not self._is_done and self._session.stopped is None:
                    yield from self._epoch()
                if self._finished_everywhere():
                    self._wind_up()
                    return
        except GeneratorExit:
            self._session.was_left = True
            self._session.saver.fence()  # what the script does now is its own business
            raise
        finally:
            self._plan.feed.close()

    def _is_past(self, past: Past | None) -> bool:
        """Whether it is over for the others, or was over before this script started again."""
        for optimizer in self._session.watched.optimizers:  # else schedulers warn that they step before the optimizer
            optimizer._opt_called = True  # type: ignore[attr-defined]  # torch.optim.lr_scheduler's own mark
        # Without a past: a newcomer that is in no generation yet, and knows that the others have passed this loop.
        return past is None or self._number < past.loop or (self._number == past.loop and not past.in_loop)

    def _come_in(self) -> None:
        """Meet the others at the start, or where they are in this loop."""
        session, past = self._session, self._session.past
        start = f"start of loop {self._number}: {self._text()}"
        if past is None:
            meet(session, start, self._start)
        elif past.is_resumed:
            self._catch_up(past)
        elif past.in_loop:
            self.cursor = take_past(session)
            self.first_step = past.first_step
            session.loops, session.points, session.in_loop = self._number, session.points + 1, True  # as the others are
            self._join_in()
            session.reporter.restart_clock()
            session.saver.restart_clock()
        else:
            take_past(session)
            meet(session, start, self._start)

    def _join_in(self) -> None:
        """The others are in the middle of it."""
        while True:
            try:
                self._prepare(holds_state=False)
                return
            except ExchangeFailed as failure:
                breakage = Breakage.by(failure, self._session.step, "joining a loop")
                self.cursor = recover(self._session, breakage, self.cursor).cursor

    def _wind_up(self) -> None:
        """The last thing before the script goes on behind the loop."""
        save_asked(self._session)
        if self._session.stopped is not None:
            save_on_stop(self._session)
        self._session.saver.fence()
        self._session.note_loop_end()

    def _catch_up(self, past: Past) -> None:
        """A resumed script has reached the loop that its checkpoint is in."""
        check_place(self._session, past, self.terms())
        try:
            self.cursor = load_state(self._session, past.state)
        except CheckpointUnusable as error:
            raise CheckpointUnusable(
                f"{self._session.saver.last_name} does not fit the script: {error}; resume with the script, arguments "
                "and model that it was made with, or start a new job"
            ) from None
        self.first_step = past.first_step
        self._session.past = None
        self._session.compared = self._session.step  # all have read the same bytes
        meet(self._session, f"resuming loop {self._number}: {self._text()}", self._start)
        forget_changed(self._session, past.state)

    def leave(self) -> None:
        """The script left it in the middle: it is over, wherever it was in its data."""
        self.cursor = Cursor(epoch=self._last_epoch + 1)

    @property
    def _is_done(self) -> bool:
        """Depends on the state alone, so that all members answer alike after any regrouping."""
        limit = self._plan.steps
        return self.cursor.epoch > self._last_epoch or (
            limit is not None and self._session.step - self.first_step >= limit
        )

    def _finished_everywhere(self) -> bool:
        """Meet at the end: a member that missed the last step finds its source here."""
        session = self._session
        point = end_of_loop(session)
        session.peers.hold(at_end=True)
        session.saver.vote_asked(session.replica.votes)
        try:
            session.agree(point, compare=True)
        except ExchangeFailed as failure:
            breakage = Breakage.by(failure, session.step, point, at_end=True)
            recovered = recover(session, breakage, self.cursor)
            self.cursor = recovered.cursor
            if not recovered.has_passed:
                return False
            session.replica.votes.save_seen = False  # those who have passed began it before this generation
        session.points += 1
        leave_loop(session)
        return True

    def _check_optimizers(self) -> None:
        """Every parameter that is going to be updated must be one that all workers have in common."""
        watched = self._session.watched
        known = {id(parameter) for model in watched.models.values() for parameter in model.parameters()}
        for number, optimizer in enumerate(watched.optimizers, start=1):
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if id(parameter) not in known:
                    raise UsageError(
                        f"optimizer {number} has a parameter of shape {list(parameter.shape)} that is in no model of "
                        "run.model, so workers would not agree on it; write model = run.model(model) first"
                    )

    def terms(self) -> dict[str, str]:
        """What the script has said of it."""
        return {name: str(value) for name, value in loop_terms(self._plan)}

    def length(self) -> int:
        """Batches over all epochs, while the number of workers stays what it is."""
        return LoopLength(self._plan, self.dealing()).batches()

    def _text(self) -> str:
        return f"batch {self._plan.feed.batch_size}, {self._plan.feed.samples} samples"

    def _start(self, point: str) -> None:
        session, length = self._session, LoopLength(self._plan, self.dealing())
        session.agree(point, with_terms=True)
        self._prepare(holds_state=True)
        if session.peers.group.rank == 0:
            session.peers.report(
                LoopStarted(
                    loop=self._number,
                    epochs=length.epochs,
                    steps_per_epoch=length.steps_per_epoch,
                    global_batch=length.dealing.step_size,
                    samples_per_epoch=self._plan.feed.samples,
                    first_epoch=self._plan.first_epoch,
                    steps=self._plan.steps,
                    end=length.end(Place(self.first_step, session.step, self.cursor, session.gaps)),
                    replaced=session.strategy.replaced,
                )
            )
        session.strategy.replaced = 0  # told once
        session.reporter.restart_clock()
        session.saver.restart_clock()

    def _prepare(self, *, holds_state: bool) -> None:
        session = self._session
        session.strategy.prepare(session.watched.optimizers, step=session.step, holds_state=holds_state)

    def _epoch(self) -> Generator[Any, None, None]:
        """From the cursor to the end of its epoch, through any number of regroupings."""
        while self._session.gaps and self._goes_on:
            yield from self._gap()
        started, epoch, before = time.perf_counter(), self.cursor.epoch, self.cursor.position
        self._reached = before
        while self.cursor.epoch == epoch and self._goes_on:
            is_through = yield from self._run_through(self._plan.feed.batches(self.cursor, self.dealing()))
            if is_through:
                self.cursor = Cursor(epoch=epoch + 1)
        if self.cursor.epoch > epoch:
            self._report_epoch(epoch, self._reached, self._reached - before, time.perf_counter() - started)

    def _gap(self) -> Generator[Any, None, None]:
        """Positions before the cursor that workers which ran free had not used when the checkpoint was made."""
        gap, self._is_in_gap = self._session.gaps[0], True
        try:
            yield from self._run_through(
                self._plan.feed.batches(Cursor(gap.epoch, gap.start), self.dealing(), gap.stop)
            )
        finally:
            self._is_in_gap = False

    @property
    def _goes_on(self) -> bool:
        return not self._is_done and self._session.stopped is None

    def _run_through(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, bool]:
        """Yield them, each settled before the next; returns whether they came to their end."""
        self._is_step_start, self._weight = True, 0.0
        self._mark = time.perf_counter()
        try:
            for batch in batches:
                iteration = self._begin(batch)
                begun = time.perf_counter()
                yield moved(batch.data, self._session.device)
                is_broken = self._end(batch, iteration, begun)
                self._reached = batch.cursor_after.position
                if is_broken or not self._goes_on:
                    return False
        finally:
            batches.close()
        return True

    def _advance(self, batch: Batch) -> None:
        """A step is applied: its positions are used."""
        if not self._is_in_gap:
            self.cursor = batch.cursor_after
            return
        gap, *rest = self._session.gaps
        left = Range(gap.epoch, batch.cursor_after.position, gap.stop)
        self._session.gaps = (left, *rest) if left.size else tuple(rest)

    def _begin(self, batch: Batch) -> Iteration:
        iteration = Iteration(
            step=self._session.step,
            weight=float(batch.samples),
            earlier_weight=self._weight,
            step_samples=batch.step_samples,
            samples=batch.samples,
            own_samples=batch.samples + (0 if self._is_step_start else self._own_samples),
            is_first=self._is_step_start,
            is_last=batch.is_last,
        )
        self._input = time.perf_counter() - self._mark
        self._session.peers.hold()
        self._session.begin(iteration)
        return iteration

    def _end(self, batch: Batch, iteration: Iteration, begun: float) -> bool:
        """Settle the iteration; returns whether the group broke, so that batches must be dealt out anew."""
        resumed = time.perf_counter()
        session = self._session
        held_up = session.saver.blocked - self._blocked
        session.end()
        self._weight = 0.0 if batch.is_last else iteration.step_weight
        self._is_step_start = batch.is_last
        if batch.is_last and not iteration.is_void:
            self._advance(batch)
        if session.replica.votes.stop_seen and batch.is_last and iteration.breakage is None:
            self._agree_to_stop(iteration)
        if session.saver.is_asked_now and batch.is_last and iteration.breakage is None:
            self._agree_to_save(iteration)
        if batch.is_last and iteration.breakage is None and session.stopped is None:
            self._heed_wishes(iteration)
        if iteration.breakage is not None:
            if iteration.is_void:
                undo_void(session, iteration)
            session.is_doubtful = not (iteration.is_void or iteration.breakage.is_planned)
            self.cursor = recover(session, iteration.breakage, self.cursor).cursor
            if session.replica.votes.save and batch.is_last:
                session.saver.owe()
        elif batch.is_last:
            save_after_step(session, self.cursor)
        self._account(batch, iteration, begun=begun, resumed=resumed, held_up=held_up)
        return iteration.breakage is not None

    def _account(self, batch: Batch, iteration: Iteration, *, begun: float, resumed: float, held_up: float) -> None:
        """Where the time of an iteration went. `held_up`: seconds in its body, by a checkpoint."""
        session = self._session
        now = time.perf_counter()
        body = resumed - begun
        waited = min(iteration.waited, body)
        checkpoint = session.saver.blocked - self._blocked
        shares = TimeShares(
            compute=body - waited - held_up,
            communication=waited - min(iteration.idle, waited),
            waiting=min(iteration.idle, waited),
            input=self._input,
            checkpoint=checkpoint,
            other=(now - self._mark) - self._input - body - (checkpoint - held_up),
        )
        self._blocked = session.saver.blocked
        self._own_samples = iteration.own_samples
        session.reporter.add(shares=shares, epoch=batch.cursor_after.epoch)
        # A checkpoint must not be ahead of the record: a resumed job would leave out the steps between.
        session.reporter.send(step=session.step, now=session.saver.last_step == session.step)
        self._mark = time.perf_counter()

    def _report_epoch(self, epoch: int, samples: int, timed: int, seconds: float) -> None:
        self._session.reporter.send(step=self._session.step, now=True)
        if self._session.peers.group.rank == 0:
            event = EpochEnded(epoch=epoch, step=self._session.step, samples=samples, seconds=seconds, timed=timed)
            self._session.peers.report(event)

    def _agree_to_save(self, iteration: Iteration) -> None:
        """The script called run.save in this step, on every worker: who is still writing is asked now."""
        session, point = self._session, f"saving after step {self._session.step}"
        session.saver.vote(session.replica.votes, step=session.step)
        try:
            session.agree(point)
        except ExchangeFailed as failure:
            iteration.mark_broken(point, failure)

    def _heed_wishes(self, iteration: Iteration) -> None:
        """Some worker said in this step's exchange that it leaves, or that somebody waits to be let in."""
        session, votes = self._session, self._session.replica.votes
        if votes.leaving:
            session.reporter.tell(step=session.step)  # nobody else may know of this step
            if votes.leaving_seen == session.peers.group.size:  # nobody is left to hand over to
                save_on_handover(session, self.cursor)
            raise HandedOver(session.peers.leave_wish() or "it was told to go")
        if votes.leaving_seen or votes.regroup_seen:
            reason = session.peers.regroup_wish() or "a worker hands its place over or waits to be let in"
            operation = f"regrouping after step {session.step}"
            iteration.breakage = Breakage(session.step, operation, reason, None, is_planned=True)

    def _agree_to_stop(self, iteration: Iteration) -> None:
        point = f"stop after step {self._session.step}"
        try:
            self._session.agree(point)
        except ExchangeFailed as failure:
            iteration.mark_broken(point, failure)
