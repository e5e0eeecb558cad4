"""One worker's side of a job, behind `Run`: what is watched, which step it is, how a step begins and ends.

The loop (`loop`) drives the session; `recovery` mends it after failures. `begin` and `end` are the contract of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from shoal.collectives.group import Group
from shoal.data.dealing import Dealing
from shoal.data.order import key_of
from shoal.errors import Aborted, ExchangeFailed
from shoal.events import Advised, StopAgreed, StopRequested, UndoKept
from shoal.job_config import JobConfig
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Iteration, Strategy, waiting
from shoal.training import texts
from shoal.training.held_state import HeldState
from shoal.training.model import devices
from shoal.training.model.optimizers import OptimizerSteps
from shoal.training.open_batch import OpenBatch
from shoal.training.recovery.snapshot import CommitUnit, UnitStart
from shoal.training.reporting.progress import Progress
from shoal.training.reporting.reporter import Reporter
from shoal.training.saving.saving import Saver
from shoal.training.script.past import Past
from shoal.training.script.script_calls import ScriptCalls, disagreement
from shoal.training.script.script_place import ScriptPlace
from shoal.training.watched import Watched
from shoal.values import Cursor, Standing

T = TypeVar("T")
TERMS_BYTES = 5  # of the digest of the script's calls that travel in a note, which has room for 40 bits
OUTSIDE_KEY = 6  # see `data.order`: keys for different uses start from different numbers


class HandedOver(BaseException):
    """This worker was told to leave, and all others know that it leaves."""


class RunningLoop(Protocol):
    """What the session knows of the loop that is going on."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def first_step(self) -> int: ...

    def leave(self) -> None: ...

    def go_to(self, cursor: Cursor) -> None: ...

    def dealing(self) -> Dealing: ...

    def terms(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Lasting:
    """What a worker keeps when its script starts again from the top, in a new session."""

    reporter: Reporter
    progress: Progress
    saver: Saver


class Session:
    """Holds parts that only their own modules may change; this class itself only changes which loop is going on."""

    def __init__(self, replica: Replica, strategy: Strategy, config: JobConfig, lasting: Lasting) -> None:
        peers = self.peers = replica.peers
        self.replica = replica
        self.strategy = strategy
        self.config = config
        self.device = devices.own_device()
        self.lasting = lasting
        self.watched = Watched()
        self.held = HeldState(0 if peers.is_new else peers.generation.number)
        self.place = ScriptPlace()
        self.script = ScriptCalls(peers)
        self.batch = OpenBatch()
        self.unit = CommitUnit(peers)
        self.steps = OptimizerSteps(
            strategy,
            replica.votes,
            can_fail=lambda: peers.group.size > 1,
            average_loss=self._mean_loss,
            before_update=self._prepare,
        )
        self.loop: RunningLoop | None = None  # the loop that is going on, or the last one

    # What others read often

    @property
    def reporter(self) -> Reporter:
        return self.lasting.reporter

    @property
    def progress(self) -> Progress:
        return self.lasting.progress

    @property
    def saver(self) -> Saver:
        return self.lasting.saver

    @property
    def step(self) -> int:
        """Applied steps so far, over all loops."""
        return self.held.step

    @property
    def stopped(self) -> str | None:
        """The reason, once all workers have agreed to end their loops."""
        return self.held.stopped

    @property
    def iteration(self) -> Iteration | None:
        """The iteration that the script is in, or has left by `break`."""
        return self.batch.iteration

    # Where the script is

    def go_through(self, past: Past) -> None:
        """Let the script skip everything that the other workers have passed. Raises TermsDiffer."""
        self.place.go_through(past)
        self.held.lose()
        self.script.learn_all(past.calls)

    def open_loop(self, loop: RunningLoop) -> None:
        self.loop = loop
        self.unit.drop()

    @property
    def is_catching_up(self) -> bool:
        """Whether the script repeats calls that the other workers, or its own earlier run, have made."""
        return self.place.past is not None or self.peers.is_new

    # The contract of a step

    def begin(self, iteration: Iteration) -> None:
        """Do all that must be done before a batch is yielded."""
        if iteration.is_first and self.unit.start is None:
            self._begin_unit()
        self.batch.begin(iteration, is_compared=self._compare_now(iteration))
        place = (iteration.step, self.peers.group.rank, int(iteration.earlier_weight))
        devices.seed(self.device, key_of(self.config.seed, *place))
        self._vote(iteration)
        self.steps.begin(iteration)
        self.replica.buffers.refresh()
        self.strategy.begin(iteration)
        self.peers.set_position(iteration.step, "forward and backward")

    def _begin_unit(self) -> None:
        assert self.loop is not None
        self.unit.begin(UnitStart(self.step, self.replica.votes.updates, self.loop.cursor, self.held.gaps))
        if self.peers.group.size > 1:
            started = time.perf_counter()
            self.unit.take_snapshot(self.watched, of_stretch=self.strategy.manners.has_stretches)
            self.progress.spent("undo copies", time.perf_counter() - started)

    def _goes_on_after(self, iteration: Iteration) -> bool:
        """Whether the present stretch goes on after this iteration."""
        return self.strategy.manners.has_stretches and not iteration.meets

    def _vote(self, iteration: Iteration) -> None:
        votes = self.replica.votes
        if self._goes_on_after(iteration):
            if iteration.is_last:
                self.saver.pass_over(step=iteration.step + 1)
            return
        if iteration.is_last:
            self.saver.vote(votes, step=iteration.step + 1)
        if self.peers.group.size == 1:  # alone, no exchange carries the votes
            votes.see_own(
                stop=(votes.stop or self.peers.stop_wish()) is not None,
                leaving=self.peers.leave_wish() is not None,
                regroup=self.peers.regroup_wish() is not None,
            )

    def _compare_now(self, iteration: Iteration) -> bool:
        """Whether this step's exchange compares the replicas. A worker that is alone counts as compared."""
        every = self.config.digest_every
        is_due = bool(every) and iteration.is_last and iteration.step % every == 0
        # Replicas differ all the time where workers run free, and up to a meeting where steps are each worker's own.
        compares = is_due and self.strategy.manners.every == 1
        if compares and self.peers.group.size > 1:
            started = time.perf_counter()
            iteration.digest = self.replica.digest()
            self.progress.spent("digests", time.perf_counter() - started)
        return compares

    def _prepare(self) -> float:
        """Finish copies of the state before an update changes it. Returns the factor for learning rates."""
        self.saver.fence()
        return self.lr_factor

    @property
    def lr_factor(self) -> float:
        """The factor between the learning rates of updates and those that the script set."""
        is_scaled = self.config.resize == "worker-batch-and-lr"
        return self.peers.group.size / self.config.workers if is_scaled else 1.0

    def end(self) -> None:
        """The script asks for the next batch: settle what this one was."""
        iteration = self.iteration
        assert iteration is not None
        self.saver.fence()  # needed without an update too, such as where a scaler skips one
        self.strategy.finish(iteration)
        if iteration.breakage is None and self.peers.group.size > 1:
            if iteration.meets and iteration.exchanges == 0:
                self._meet_without_backward(iteration)
            elif self._goes_on_after(iteration) and (news := self.peers.interruption()) is not None:
                iteration.mark_void("a step of this worker's own", Aborted(news))
        self.conclude(iteration, counts=iteration.is_last)

    def conclude(self, iteration: Iteration, *, counts: bool) -> None:
        """Undo a void iteration; count any other as a step where it `counts`."""
        if iteration.is_void and not self.steps.is_protected:
            self.peers.report(Advised(worker=self.peers.worker, text=texts.cannot_undo(iteration.step)))
            self.held.lose()
        self.steps.end(iteration)
        self.strategy.end()
        self.batch.end(iteration)
        if iteration.is_void:
            self.reporter.drop_logged()
            return
        if counts:
            self.held.apply(is_compared=self.batch.is_compared)
            self.reporter.keep_logged(iteration, step=self.step)
            self._tell_undo()
        if iteration.meets or (iteration.is_last and not self.strategy.manners.has_stretches):
            self.commit()
        elif iteration.is_last:
            self.unit.add_samples(iteration.step_samples)

    def commit(self) -> None:
        """Make the present unit final, whatever happens from now on."""
        self.unit.commit()
        self.reporter.commit()

    @property
    def is_inside_stretch(self) -> bool:
        """Whether applied steps count only if all workers reach their next meeting."""
        start = self.unit.start
        return start is not None and start.step < self.step and self.strategy.manners.has_stretches

    def go_back(self) -> None:
        """The present unit is void: restore what the script's code changed in it."""
        start = self.unit.go_back(self.watched.kept)
        if start is not None and self.loop is not None:
            self.held.go_back(start.step, start.gaps)
            self.loop.go_to(start.cursor)
            self.replica.votes.take_updates(start.updates)

    def _meet_without_backward(self, iteration: Iteration) -> None:
        """Meet the others where this worker exchanged no gradient: all learn whether any worker exchanged one."""
        point = f"step {iteration.step}, no backward"
        try:
            with waiting(iteration, self.peers):
                self.replica.agree(point)
        except ExchangeFailed as failure:
            iteration.mark_broken(point, failure)

    def _tell_undo(self) -> None:
        if (cost := self.steps.take_undo_cost()) is not None:
            size, seconds = cost
            reason = "one iteration takes several optimizer steps, and all of them count or none"
            self.peers.report(UndoKept(worker=self.peers.worker, size=size, seconds=seconds, reason=reason))

    # Agreement outside of gradients

    def agree(self, point: str, *, compare: bool = False, with_terms: bool = False) -> None:
        """Meet all workers outside an iteration; learn here whether all loops end. Raises ExchangeFailed.

        With `with_terms` their scripts must have made the same calls so far.
        """
        self.peers.set_position(self.step, point)
        terms = int.from_bytes(self.script.digest[:TERMS_BYTES], "big") if with_terms else 0
        agreement = self.replica.agree(point, compare=compare, terms=terms)
        if not agreement.is_same:
            raise disagreement(self.script, self.peers)
        if compare:
            self.strategy.compared(self.replica.compared)
        if agreement.stop is not None and self.stopped is None:
            self.held.stop(agreement.stop)
            self.replica.votes.ask_stop(agreement.stop)
            if self.peers.group.rank == 0:
                self.peers.report(StopAgreed(step=self.step, reason=agreement.stop))

    def seed_outside(self) -> None:
        """Code between loops draws the same numbers on every worker, and again when the script runs from the top."""
        devices.seed(self.device, key_of(OUTSIDE_KEY, self.config.seed, self.place.loops, len(self.place.results)))

    def tell_behind(self) -> None:
        """For heartbeats: the script is in its own code, outside loops."""
        if self.place.loops and not self.place.in_loop:
            self.peers.set_position(self.step, f"the code behind loop {self.place.loops}")

    @property
    def is_behind_past(self) -> bool:
        """Whether the script, a newcomer's or one that started again, has passed a loop that had ended before."""
        return self.is_catching_up and self.place.loops > 0

    def give_up_iteration(self) -> None:
        """End a void iteration that the script will not come back to."""
        assert self.iteration is not None
        self.batch.settle()
        self.conclude(self.iteration, counts=False)

    @property
    def steps_done(self) -> int:
        """Applied steps, including the last one of a loop that was left and is not settled yet."""
        return self.step + self.batch.is_left_as_step

    def close(self, *, starts_again: bool = False) -> None:
        """Release the models: the script has ended, with or without an error.

        `starts_again`: another session takes over what lasts, and checkpoints that are being written.
        """
        self.reporter.send(step=self.step, now=True, is_inside=self.is_inside_stretch)
        if not starts_again:
            self.saver.fence()
            self.saver.close()
        self.strategy.detach()
        self.replica.release()
        self.batch.drop()

    def rebind(self) -> None:
        """Drop all that was in flight in the old group: the members regroup, or have regrouped."""
        self.replica.votes.forget_seen()
        self.strategy.rebind()

    def ask_to_stop(self, reason: str) -> None:
        if self.replica.votes.stop is None:
            self.replica.votes.ask_stop(reason)
            self.peers.report(StopRequested(worker=self.peers.worker, reason=reason))

    def collective(self, operation: str, action: Callable[[Group, str], T], *, alone: T) -> T:
        """Run a collective of the script in an iteration. If it fails, return this worker's own value, `alone`."""
        iteration = self.iteration
        assert iteration is not None
        named = self.batch.name_call(operation)
        try:
            with waiting(iteration, self.peers):
                return action(self.peers.group, f"step {self.step}, {named}")
        except ExchangeFailed as failure:
            iteration.mark_broken(named, failure)
            return alone

    def standing(self) -> Standing:
        """Where this worker is, for the others to compare. Between iterations."""
        is_free = self.strategy.manners.is_free  # then the servers have the state, and workers differ
        return Standing(
            generation=self.held.generation,
            step=self.held.agreed_step if is_free else self.step,
            points=self.place.points,
            loop=self.place.loops if self.place.has_begun else 0,
            in_loop=self.place.in_loop,
            end_points=0 if self.place.loop_end is None else self.place.loop_end.points,
            is_changed=self._is_changed,
            is_doubtful=self.held.is_doubtful,
            is_stopped=self.stopped is not None,
            is_new=self.peers.is_new,
            digest=0 if is_free else self.replica.digest(),
        )

    @property
    def _is_changed(self) -> bool:
        """Whether the script's code after its last loop has, or may have, changed parameters."""
        end = self.place.loop_end
        if self.place.in_loop or end is None:
            return False
        return end.digest is None or self.replica.digest(end.models) != end.digest

    def _mean_loss(self, loss: Any) -> Any:
        """A closure's loss, weighted by samples over all workers."""
        iteration = self.iteration
        if self.peers.group.size == 1 or iteration is None:
            return loss
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        weighted = value * iteration.weight if iteration.weight else 0.0
        total = torch.tensor([weighted, iteration.weight], dtype=torch.float64)

        def reduce(group: Group, label: str) -> float:
            group.all_reduce(total, label=label).wait()
            return float(total[0] / total[1])

        mean = self.collective("loss of a closure", reduce, alone=value)
        return torch.as_tensor(mean, dtype=loss.dtype) if isinstance(loss, torch.Tensor) else mean
