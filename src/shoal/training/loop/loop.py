"""One loop over data: yields batches, settles each step when the next batch is asked for, redoes void ones.

Everything that needs peers besides gradients happens here, inside the generator's `next()`: agreement on stopping,
regrouping, copying. All workers leave a loop at the same step; an error names a worker that leaves early.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from shoal.data.dealing import Dealing
from shoal.data.feed import Batch
from shoal.errors import CheckpointUnusable, ExchangeFailed, UsageError
from shoal.events import LoopStarted, ScriptDoubtful
from shoal.strategies.peers.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.terms import SampleHashes
from shoal.training import texts
from shoal.training.loop.leasing import Leased
from shoal.training.loop.loop_length import LoopLength, LoopPlace
from shoal.training.loop.loop_meetings import CalledMeetings, LoopMeetings, MeetingsInSteps
from shoal.training.loop.loop_task import LoopTask
from shoal.training.loop.supply import Dealt, Supply
from shoal.training.mistakes.compared_data import HASHES, compare_data, kept_hashes, warn_of_change
from shoal.training.mistakes.wrappers import wrapped_afterwards
from shoal.training.model.devices import moved
from shoal.training.model.state import forget_changed, load_state
from shoal.training.recovery.recovery import enter, recover, tell_batch, undo_void
from shoal.training.saving.checkpointing import save_asked, save_on_stop
from shoal.training.saving.resume import check_place
from shoal.training.script.call_terms import data_samples, loop_terms
from shoal.training.script.meetings import end_of_loop, leave_loop, load_behind, mark_loop_end, meet, take_past
from shoal.training.script.past import Past
from shoal.training.script.settling import settle
from shoal.training.session import Session
from shoal.values import Cursor, TimeShares


class Loop:
    def __init__(self, session: Session, task: LoopTask) -> None:
        self.session = session
        self.task = task
        self.number = 0  # in program order, given when the loop starts
        self.first_step = 0
        self.cursor = Cursor(epoch=task.first_epoch)
        self._weight = 0.0  # of the current step's batches before the current one
        self._is_step_start = True
        self.reached = 0
        self._mark = time.perf_counter()  # end of the last iteration
        self._own_samples = 0  # of this worker in the current step so far
        self._input = 0.0  # seconds that the current batch was waited for
        self._blocked = 0.0  # seconds that checkpoints had held the script up by the end of the last iteration
        self._supply: Supply = Dealt(self)
        self._meetings: LoopMeetings = MeetingsInSteps(self)
        if (free := session.strategy.free) is not None:
            self._supply = leased = Leased(self, free)
            self._meetings = CalledMeetings(self, leased, free)

    def dealing(self) -> Dealing:
        """How steps are dealt out in the present generation."""
        return self._supply.dealing()

    def run(self) -> Generator[Any, None, None]:
        """What the user's `for` iterates over."""
        session = self.session
        settle(session)
        if session.iteration is not None:
            raise UsageError(texts.LOOP_IN_LOOP)
        if session.stopped is not None:
            return
        session.script.make("loop", loop_terms(self.task), self._samples())
        enter(session)
        session.open_loop(self)
        self.number, self.first_step, self._blocked = session.place.loops + 1, session.step, session.saver.blocked
        if session.is_catching_up and self._is_past(session.place.past):
            session.place.skip_loop()
            load_behind(session)
            session.seed_outside()
            return
        self._check_handed()
        self._come_in()
        session.place.enter_loop(self.number)
        tell_batch(session)
        try:
            while True:
                while self.goes_on:
                    yield from self._supply.portion()
                if self._finished_everywhere():
                    self._wind_up()
                    return
        except GeneratorExit:
            self.session.batch.leave()
            self.session.saver.fence()  # from now on the script may change the state
            raise
        finally:
            self.task.feed.close()

    def _is_past(self, past: Past | None) -> bool:
        """Whether this loop is over for the others, or was over before this script started again."""
        for optimizer in self.session.watched.optimizers:  # else schedulers warn that they step before the optimizer
            optimizer._opt_called = True  # type: ignore[attr-defined]  # torch.optim.lr_scheduler's own mark
        # Without a past: a newcomer that is in no generation yet, and knows that the others have passed this loop.
        return past is None or self.number < past.loop or (self.number == past.loop and not past.in_loop)

    def _come_in(self) -> None:
        """Meet the others at the start, or where they are in this loop."""
        session, past = self.session, self.session.place.past
        start = f"start of loop {self.number}"  # where loops differ, the terms say how
        if past is None:
            meet(session, start, self._start)
        elif past.is_resumed:
            self._catch_up(past)
        elif past.in_loop:
            self.cursor = take_past(session)
            self.first_step = past.first_step
            session.place.enter_loop(self.number)  # like the others
            session.place.pass_meeting()
            self._join_in()
            session.reporter.restart_clock()
            session.saver.restart_clock()
        else:
            take_past(session)
            meet(session, start, self._start)

    def _join_in(self) -> None:
        """Join the others in the middle of the loop."""
        while True:
            try:
                self._prepare(holds_state=False)
                return
            except ExchangeFailed as failure:
                breakage = Breakage.by(failure, self.session.step, "joining a loop")
                self.cursor = recover(self.session, breakage, self.cursor).cursor

    def _wind_up(self) -> None:
        """Do what is left to do before the script goes on after the loop."""
        save_asked(self.session)
        if self.session.stopped is not None:
            save_on_stop(self.session)
        self.session.saver.fence()
        mark_loop_end(self.session)

    def _catch_up(self, past: Past) -> None:
        """A resumed script has reached the loop that its checkpoint is in."""
        check_place(self.session, past, self.terms())
        warn_of_change(self.session, past, self._samples())
        try:
            self.cursor = load_state(self.session, past.state)
        except CheckpointUnusable as error:
            raise CheckpointUnusable(texts.checkpoint_misfits(self.session.saver.last_name, str(error))) from None
        self.first_step = past.first_step
        self.session.place.reach_checkpoint()
        self.session.held.trust(self.session.step)  # all have read the same bytes
        meet(self.session, f"resuming loop {self.number}", self._start)
        forget_changed(self.session, past.state)

    def go_to(self, cursor: Cursor) -> None:
        """Set the loop's place in its data."""
        self.cursor = cursor

    def begin_portion(self) -> int:
        """Note and return the position from which batches of one epoch are about to be dealt out."""
        self.reached = self.cursor.position
        return self.reached

    def leave(self) -> None:
        """The script left the loop in the middle: the loop is over, wherever it was in its data."""
        self.cursor = Cursor(epoch=self.task.first_epoch + self.task.epochs)

    def _finished_everywhere(self) -> bool:
        """Meet at the end: a member that missed the last step finds its source here."""
        session = self.session
        if not self._meetings.ends_together():
            return False
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
                self._supply.reopen()
                return False
            session.replica.votes.forget_save()  # the save began in an earlier generation, with those who have passed
        session.place.pass_meeting()
        leave_loop(session)
        return True

    def _check_handed(self) -> None:
        """Every parameter that is going to be updated must be one that all workers have in common."""
        watched = self.session.watched
        if (wrapped := wrapped_afterwards(watched.models)) is not None:
            raise UsageError(texts.wrapped_afterwards(*wrapped))
        known = {id(parameter) for model in watched.models.values() for parameter in model.parameters()}
        for number, optimizer in enumerate(watched.optimizers, start=1):
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if id(parameter) not in known:
                    raise UsageError(texts.parameter_in_no_model(number, parameter.shape))
        watched.gradients.watch(watched.models, watched.optimizers)

    def _tell_unoptimized(self) -> None:
        """A step has given gradients to models that nobody may optimize."""
        watched, peers = self.session.watched, self.session.peers
        for name in watched.gradients.take(watched.models, watched.optimizers):
            text = texts.not_optimized(name, type(watched.models[name]).__name__)
            peers.report(ScriptDoubtful(worker=peers.worker, text=text))

    def terms(self) -> dict[str, str]:
        """What the script has said of this loop."""
        said = {name: str(value) for name, value in loop_terms(self.task)}
        return {**said, HASHES: kept_hashes(self._samples())}

    def _samples(self) -> SampleHashes:
        """Hashes of some samples, where there are others to compare them with."""
        return data_samples(self.task.feed) if self.session.peers.has_others else ()

    def length(self) -> int:
        """Batches over all epochs, while the number of workers stays what it is."""
        return LoopLength(self.task, self.dealing()).batches()

    def _start(self, point: str) -> None:
        session, length = self.session, LoopLength(self.task, self.dealing())
        session.agree(point, with_terms=True)
        compare_data(session, self.task.feed, self.cursor, f"loop {self.number}", point)
        self._prepare(holds_state=True)
        replaced = session.strategy.take_replaced()  # told once
        if session.peers.group.rank == 0:
            session.peers.report(
                LoopStarted(
                    loop=self.number,
                    epochs=length.epochs,
                    steps_per_epoch=length.steps_per_epoch,
                    global_batch=length.dealing.step_size,
                    samples_per_epoch=self.task.feed.samples,
                    first_epoch=self.task.first_epoch,
                    steps=self.task.steps,
                    end=length.end(LoopPlace(self.first_step, session.step, self.cursor, session.held.gaps)),
                    replaced=replaced,
                )
            )
        session.reporter.restart_clock()
        session.saver.restart_clock()

    def _prepare(self, *, holds_state: bool) -> None:
        session = self.session
        session.strategy.prepare(session.watched.optimizers, step=session.step, holds_state=holds_state)
        self._supply.begin(holds_state=holds_state)

    @property
    def goes_on(self) -> bool:
        return not self._supply.is_over and self.session.stopped is None

    def run_through(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, bool]:
        """Yield the batches, settling each before the next. Returns whether all of them were yielded."""
        self._is_step_start, self._weight = True, 0.0
        self._mark = time.perf_counter()
        try:
            for batch in batches:
                if self._is_step_start and not self._supply.may_begin(batch):
                    return False
                iteration = self._begin(batch)
                begun = time.perf_counter()
                yield moved(batch.data, self.session.device)
                is_broken = self._end(batch, iteration, begun)
                self.reached = batch.cursor_after.position
                if is_broken or not self.goes_on:
                    return False
        finally:
            batches.close()
        return True

    def _begin(self, batch: Batch) -> Iteration:
        iteration = Iteration(
            step=self.session.step,
            weight=float(batch.samples),
            earlier_weight=self._weight,
            step_samples=batch.step_samples,
            samples=batch.samples,
            own_samples=batch.samples + (0 if self._is_step_start else self._own_samples),
            is_first=self._is_step_start,
            is_last=batch.is_last,
            meets=batch.is_last and self.session.strategy.manners.meets_in(self.session.step + 1),
            positions=self._supply.positions(batch),
        )
        self._input = time.perf_counter() - self._mark
        self.session.peers.hold()
        self.session.begin(iteration)
        return iteration

    def _end(self, batch: Batch, iteration: Iteration, begun: float) -> bool:
        """Settle the iteration; returns whether something came between, so that positions must be given out anew."""
        resumed, session = time.perf_counter(), self.session
        held_up = session.saver.blocked - self._blocked
        session.end()
        self._weight = 0.0 if batch.is_last else iteration.step_weight
        self._is_step_start = batch.is_last
        if batch.is_last and not iteration.is_void:
            self._supply.applied(batch, iteration)
            if session.watched.gradients.touched:
                self._tell_unoptimized()
        if batch.is_last and iteration.breakage is None:
            self._meetings.after_step(iteration)
        if iteration.breakage is not None:
            self.mend(iteration, iteration.breakage)
        self._account(batch, iteration, begun=begun, resumed=resumed, held_up=held_up)
        return iteration.breakage is not None or (batch.is_last and self._meetings.heed())

    def mend(self, iteration: Iteration, breakage: Breakage) -> None:
        """After a breakage: undo the iteration where it is void, and go on in the next generation."""
        session, is_free = self.session, self.session.strategy.manners.is_free
        if iteration.is_void:
            undo_void(session, iteration)
        self.regroup(breakage, is_doubtful=not (iteration.is_void or breakage.is_planned or is_free))
        if session.replica.votes.save and iteration.is_last and not is_free:
            session.saver.owe()

    def meet(self) -> None:
        """All workers of a loop were called, or this one has nothing left to do."""
        self._meetings.meet()

    def regroup(self, breakage: Breakage, *, is_doubtful: bool = False) -> None:
        """Go on in the next generation. `is_doubtful`: the script may have seen values that the others did not."""
        session = self.session
        session.held.doubt(is_doubtful=is_doubtful)
        while True:
            self.cursor = recover(session, breakage, self.cursor).cursor
            try:
                self._supply.rejoin()
                return
            except ExchangeFailed as failure:
                breakage = Breakage.by(failure, session.step, "coming back into the loop")

    def _account(self, batch: Batch, iteration: Iteration, *, begun: float, resumed: float, held_up: float) -> None:
        """Report where the time of an iteration went. `held_up`: seconds that a checkpoint held up its body."""
        session = self.session
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
        is_saved = session.saver.last_step == session.step
        session.reporter.send(step=session.step, now=is_saved, is_inside=session.is_inside_stretch)
        self._mark = time.perf_counter()
