"""One worker's side of a job, behind `Run`: what is watched, which step it is, how a step begins and ends.

The loop (`loop`) drives it; `recovery` mends it after a failure. The contract of a step lives in `begin` and `end`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import nn

from shoal.checkpoint.store import Store
from shoal.collectives.group import Group
from shoal.data.order import key_of
from shoal.data.seeding import seed_generators
from shoal.errors import CheckpointUnusable, ExchangeFailed, ShoalError
from shoal.events import StopAgreed, StopRequested, UndoKept
from shoal.job_config import JobConfig
from shoal.strategies.peers import Breakage, JobOver, Peers
from shoal.strategies.strategy import Iteration, Strategy, waiting
from shoal.training.optimizers import OptimizerSteps
from shoal.training.reporter import Reporter
from shoal.training.saving import Saver
from shoal.training.snapshot import Kept, StepSnapshot
from shoal.values import Cursor, TimeShares

T = TypeVar("T")
OUTSIDE_KEY = 6  # see `data.order`: keys for different uses start from different numbers


@dataclass
class Watched:
    """What the script has handed over, in program order."""

    models: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    kept: dict[str, Kept] = field(default_factory=dict)


class StartAgain(BaseException):
    """A loop was left in a void iteration: the script must run from the top. Not an Exception: nobody catches it."""


class RunningLoop(Protocol):
    """What the session knows of the loop that is going on."""

    cursor: Cursor
    first_step: int

    def leave(self) -> None: ...


@dataclass(frozen=True)
class Past:
    """What a script that starts again from the top must know of its calls so far."""

    state: dict[str, Any]
    loop: int  # number of the loop that is going on
    first_step: int  # applied steps when that loop began
    results: tuple[Any, ...]  # of collectives outside loops, in program order
    is_resumed: bool = False  # from a checkpoint, all workers together


@dataclass(frozen=True)
class LoopEnd:
    """What code after a loop may change: a checkpoint of that point has it as it was, since that code runs again."""

    kept: dict[str, Any]
    groups: list[list[dict[str, Any]]]  # by optimizer and group: settings such as the learning rate
    results: int  # that were recorded by then
    models: tuple[str, ...]  # that had been handed over


class Session:
    def __init__(self, peers: Peers, strategy: Strategy, config: JobConfig, store: Store | None = None) -> None:
        self.peers = peers
        self.strategy = strategy
        self.config = config
        self.watched = Watched()
        self.step = 0  # applied steps so far, over all loops
        self.loops = 0  # loops started so far, in program order
        self.calls = 0  # collective calls of the script since the last step began, in program order
        self.is_doubtful = False  # the script got its own value from a collective that gave others another
        self.iteration: Iteration | None = None
        self.in_job = True  # until the coordinator was told that the script is done
        self.was_left = False  # a loop was left in the middle, and not settled yet
        self.last_applied = False  # whether the last iteration of a loop counted
        self.stopped: str | None = None  # reason, once all workers have agreed to end their loops
        self.reporter = Reporter(peers)
        self.snapshot = StepSnapshot()
        self.saver = Saver(peers, config, store)
        self.steps = OptimizerSteps(
            strategy, can_fail=peers.group.size > 1, average_loss=self._mean_loss, before_update=self._before_update
        )
        self.loop: RunningLoop | None = None
        self.loop_end: LoopEnd | None = None  # of the last loop that is over; None inside loops and before the first
        self.results: list[Any] = []  # of collectives outside loops, for a script that starts again from the top
        self.past: Past | None = None  # set while a script that started again has not reached its current loop
        self.weights: dict[str, Any] | None = None  # by model: what training starts from, where that is imported
        self.kept_before: dict[str, Any] = {}  # states of objects that a resumed script has not handed over yet
        self.save_here: Callable[[str], None] | None = None  # makes a checkpoint outside loops; set by `Run`
        self._undo_told = False

    # The contract of a step

    def begin(self, iteration: Iteration) -> None:
        """Everything that must be true when a batch is yielded."""
        self.iteration = iteration
        if iteration.is_first:
            self.calls = 0  # numbered within a step: void iterations may have made more or fewer
        if iteration.is_first and self.peers.group.size > 1:
            self.snapshot.take(self.watched.models.values(), self.watched.kept, self.watched.optimizers)
        seed_generators(key_of(self.config.seed, iteration.step, self.peers.group.rank, int(iteration.earlier_weight)))
        self._vote(iteration)
        self.steps.begin(iteration)
        self.strategy.begin(iteration)
        self.peers.set_position(iteration.step, "forward and backward")

    def _vote(self, iteration: Iteration) -> None:
        votes = self.strategy.votes
        if iteration.is_last:
            self.saver.vote(votes, step=iteration.step + 1)
        if self.peers.group.size == 1:  # alone, no exchange carries the votes
            votes.stop_seen = (votes.stop or self.peers.stop_wish()) is not None
            votes.save_seen, votes.busy_seen = votes.save, votes.busy

    def _before_update(self) -> None:
        self.saver.fence()

    def end(self) -> None:
        """The script asks for the next batch: settle what this one was."""
        iteration = self.iteration
        assert iteration is not None
        self.saver.fence()  # also of an iteration without an update, such as one that a scaler skips
        if iteration.is_last and iteration.exchanges == 0 and iteration.breakage is None and self.peers.group.size > 1:
            self._meet_without_backward(iteration)
        self._conclude(iteration, counts=iteration.is_last)

    def _conclude(self, iteration: Iteration, *, counts: bool) -> None:
        """Undo it if it is void, else count it as a step if it is one."""
        if iteration.is_void and not self.steps.is_protected:
            text = (
                f"step {iteration.step} took more optimizer steps than any iteration before it and failed after the "
                "first: it can be neither kept nor undone"
            )
            raise JobOver(ShoalError(text), is_news=True)
        self.steps.end(iteration)
        self.strategy.end()
        self.last_applied = iteration.may_update
        self.iteration = None
        if iteration.is_void:
            self.reporter.drop_logged()
        elif counts:
            self.step += 1
            self.reporter.keep_logged(samples=iteration.samples)
            self._tell_undo()

    def _meet_without_backward(self, iteration: Iteration) -> None:
        """No gradient was exchanged here. If none was anywhere, fine; else all learn who did what."""
        point = f"step {iteration.step}, no backward"
        try:
            with waiting(iteration, self.peers):
                self.strategy.agree(point)
        except ExchangeFailed as failure:
            iteration.mark_broken(point, failure)

    def _tell_undo(self) -> None:
        if self.steps.undo_cost is not None and not self._undo_told:
            size, seconds = self.steps.undo_cost
            reason = "one iteration takes several optimizer steps, and all of them count or none"
            self.peers.report(UndoKept(worker=self.peers.worker, size=size, seconds=seconds, reason=reason))
            self._undo_told = True

    # Agreement outside of gradients

    def agree(self, point: str, *, compare: bool = False) -> None:
        """Meet all workers outside an iteration; learn here whether all loops end. Raises ExchangeFailed."""
        self.peers.set_position(self.step, point)
        agreement = self.strategy.agree(point, compare=compare)
        if agreement.stop is not None and self.stopped is None:
            self.stopped = self.strategy.votes.stop = agreement.stop
            if self.peers.group.rank == 0:
                self.peers.report(StopAgreed(step=self.step, reason=agreement.stop))

    def settle(self) -> None:
        """A loop was left by `break` or `return`: fine if all workers left it in the same step.

        Called where the script comes back to us, not when the loop's generator is closed: that happens while an
        exception is on its way out too, and then there is nothing to agree on.
        """
        iteration = self.iteration
        if not self.was_left or iteration is None:
            return
        if iteration.is_void:
            raise StartAgain
        self.was_left = False
        point = f"leaving loop {self.loops} in step {iteration.step}; use run.stop(reason)"
        is_step = _is_step(iteration) and not iteration.is_void
        self._conclude(iteration, counts=is_step)
        if self.loop is not None:
            self.loop.leave()
        self.outside(point, self.agree)
        self.note_loop_end()
        if (mark := self.saver.take_asked()) is not None and self.save_here is not None:
            self.save_here(mark)  # asked for in the iteration that was left
        self.reporter.add(samples=iteration.samples if is_step else 0, shares=TimeShares())
        self.reporter.send(step=self.step, now=True)

    def seed_outside(self) -> None:
        """Code between loops draws the same numbers on every worker, and again when the script runs from the top."""
        seed_generators(key_of(OUTSIDE_KEY, self.config.seed, self.loops, len(self.results)))

    def note_loop_end(self) -> None:
        self.seed_outside()
        if self.saver.is_on:
            self.loop_end = LoopEnd(
                kept={name: copy.deepcopy(thing.state_dict()) for name, thing in self.watched.kept.items()},
                groups=[
                    [
                        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
                        for group in each
                    ]
                    for each in (optimizer.param_groups for optimizer in self.watched.optimizers)
                ],
                results=len(self.results),
                models=tuple(self.watched.models),
            )

    def give_up_iteration(self) -> None:
        """A void iteration that the script will not come back to."""
        assert self.iteration is not None
        self.was_left = False
        self._conclude(self.iteration, counts=False)

    def finish(self) -> None:
        """The script has come to its end: settle a loop that was left, also one whose iterator is still around."""
        self.was_left = self.was_left or self.iteration is not None
        self.settle()
        if self.past is not None and self.past.is_resumed and self.saver.last_step > 0:
            text = (
                f"the script came to its end after {self.loops} of its loops over data, before loop {self.past.loop}, "
                f"where {self.saver.last_name} is: nothing of that checkpoint was loaded, and what the script printed "
                "are results on record; resume the same script with at least as many epochs, or start a new job"
            )
            raise CheckpointUnusable(text)

    @property
    def steps_done(self) -> int:
        """Applied steps, with that of a loop that was left and is not settled yet."""
        return self.step + (self.was_left and self.iteration is not None and _is_step(self.iteration))

    def close(self) -> None:
        """The script is done, well or not: its models are its own again."""
        self.reporter.send(step=self.step, now=True)
        self.saver.fence()
        self.saver.close()
        self.strategy.detach()
        self.iteration = None

    def ask_to_stop(self, reason: str) -> None:
        if self.strategy.votes.stop is None:
            self.strategy.votes.stop = reason
            self.peers.report(StopRequested(worker=self.peers.worker, reason=reason))

    def collective(self, operation: str, action: Callable[[Group, str], T], *, alone: T) -> T:
        """Run a collective of the script. If it fails in an iteration the worker's own value is the result."""
        if self.past is not None:
            return cast(T, self.recorded())
        self.calls += 1
        named = f"{operation}, call {self.calls}"
        label = f"step {self.step}, {named}"
        iteration = self.iteration
        if iteration is None:
            result = self.outside(named, lambda _: action(self.peers.group, label))
            self.results.append(copy.deepcopy(result))  # the script may change its own
            return result
        try:
            with waiting(iteration, self.peers):
                return action(self.peers.group, label)
        except ExchangeFailed as failure:
            iteration.mark_broken(named, failure)
            return alone

    def recorded(self) -> Any:
        """What this collective gave before the script started again."""
        assert self.past is not None
        if len(self.results) >= len(self.past.results):
            text = (
                f"the script calls run.mean or run.evaluate {len(self.results) + 1} times before loop {self.past.loop} "
                f"and the state is of one that called them {len(self.past.results)} times; resume the same script"
            )
            raise CheckpointUnusable(text)
        self.results.append(self.past.results[len(self.results)])
        return copy.deepcopy(self.results[-1])

    def outside(self, label: str, action: Callable[[str], T]) -> T:
        """Run a collective outside iterations, where nothing can be redone yet: a failure ends the job."""
        self.peers.set_position(self.step, label)
        try:
            return action(label)
        except ExchangeFailed as failure:
            self.peers.regroup(Breakage(self.step, label, str(failure), failure.peer))
            error = ShoalError(f"{label} failed outside a loop and cannot be redone: {failure}")
            raise JobOver(error, is_news=True) from None

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


def _is_step(iteration: Iteration) -> bool:
    """Whether an iteration that was left in the middle had got as far as a step."""
    return iteration.is_last and (iteration.exchanges > 0 or iteration.updates > 0)
