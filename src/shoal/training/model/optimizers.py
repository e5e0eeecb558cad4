"""Optimizers in a script: `step()` applies whole steps only.

The user's own optimizer object stays what it is; its `step` is replaced by a bound method, because learning-rate
schedulers look at `step.__func__`. Where one iteration takes several optimizer steps, a copy is kept of what all but
the last one change, so that a failure after the first leaves none of them applied.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.strategies.replica.votes import Votes
from shoal.strategies.strategy import Iteration, Stepping, Strategy
from shoal.training import texts

Closure = Callable[[], Any]


class UndoCopy:
    """Parameters and state of one optimizer as they were before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        started = time.perf_counter()
        self._optimizer = optimizer
        self._parameters = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
        self._state = {parameter: _cloned(state) for parameter, state in optimizer.state.items()}
        self.size = sum(saved.numel() * saved.element_size() for _, saved in self._parameters)
        self.size += sum(_size(state) for state in self._state.values())
        self.seconds = time.perf_counter() - started

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, saved in self._parameters:
            parameter.copy_(saved)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _cloned(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: _cloned(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_cloned(value) for value in state)
    return state


def _size(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(_size(value) for value in state.values())
    return sum(_size(value) for value in state) if isinstance(state, list | tuple) else 0


@contextmanager
def _scaled(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Multiply learning rates for one step only: schedulers and checkpoints see those that the script set."""
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class OptimizerSteps:
    """Decides for every `optimizer.step()` whether it changes anything, and keeps what undoing it needs."""

    def __init__(
        self,
        strategy: Strategy,
        votes: Votes,
        *,
        can_fail: Callable[[], bool],
        average_loss: Callable[[Any], Any],
        before_update: Callable[[], float],
    ) -> None:
        self._strategy = strategy
        self._votes = votes  # counts optimizer steps, so that all workers can compare
        self._is_watched = strategy.watches
        self._can_fail = can_fail  # whether an exchange can fail at all: not while the worker is alone
        self._average_loss = average_loss  # mean over workers, for closures whose loss steers the optimizer
        self._before_update = before_update  # called before the state changes; returns a factor for learning rates
        self.is_stepping = False  # inside a step of a handed-over optimizer, which may step others
        self._iteration: Iteration | None = None
        self._undo: list[UndoCopy] = []
        self._usual = 2  # optimizer steps expected of an iteration; 2 at first, so that the first one keeps a copy
        self._most = 1  # optimizer steps that any iteration has taken so far, at most
        self._undo_cost: tuple[int, float] | None = None  # bytes and seconds of one iteration's copies
        self._is_cost_told = False

    def begin(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._undo = []

    def end(self, iteration: Iteration) -> None:
        """The iteration is over. A void one is undone."""
        if iteration.is_void:
            self.undo()
        elif iteration.is_last:
            self._usual = self._most = max(self._most, iteration.updates)
            if self._undo and iteration.updates > 1:
                self._undo_cost = sum(copy.size for copy in self._undo), sum(copy.seconds for copy in self._undo)
        self._undo = []
        self._iteration = None

    def take_undo_cost(self) -> tuple[int, float] | None:
        """Bytes and seconds of the copies of an iteration with several optimizer steps; told only once."""
        if self._undo_cost is None or self._is_cost_told:
            return None
        self._is_cost_told = True
        return self._undo_cost

    def undo(self) -> None:
        assert self._iteration is not None
        for copy in reversed(self._undo):
            copy.restore()
        self._votes.count_updates(-self._iteration.updates)
        self._iteration.updates = 0
        self._undo = []

    @property
    def is_protected(self) -> bool:
        """Whether every optimizer step taken so far in this iteration can be undone."""
        manners = self._strategy.manners
        if self._iteration is None or manners.updates_elsewhere or manners.has_stretches:
            return True  # nothing was changed here, or the stretch's own copy undoes it
        return len(self._undo) >= self._iteration.updates

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        original: Callable[..., Any],
        closure: Closure | None,
        clip: float | None,
    ) -> Any:
        iteration = self._iteration
        factor = self._before_update()
        if iteration is None:
            return original() if closure is None else original(closure)
        if closure is not None and not (iteration.is_first and iteration.is_last):
            raise UsageError(texts.CLOSURE_WITH_ACCUMULATE)
        if not iteration.may_update:
            return None if closure is None else closure()
        self._check_watched(optimizer)
        if self._strategy.manners.updates_elsewhere:
            self._update_elsewhere(Stepping(optimizer, factor, clip), closure)
            return None
        is_last_expected = iteration.updates + 1 >= self._usual
        if self._can_fail() and (closure is not None or not is_last_expected):
            self._undo.append(UndoCopy(optimizer))
        if closure is None and clip is not None:
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
        self.is_stepping = True
        try:
            with _scaled(optimizer, factor):
                result = original() if closure is None else original(self._agreed(closure, optimizer, clip))
        finally:
            self.is_stepping = False
        iteration.updates += 1
        self._votes.count_updates(1)
        return result

    def _update_elsewhere(self, stepping: Stepping, closure: Closure | None) -> None:
        if closure is not None:
            raise UsageError(texts.CLOSURE_WITH_SERVERS)
        assert self._iteration is not None
        self._strategy.update(stepping)
        self._iteration.updates += 1
        self._votes.count_updates(1)

    def _check_watched(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient that was not exchanged would pull this worker's replica away from the others'."""
        if not self._can_fail():
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self._is_watched(parameter):
                    raise UsageError(texts.gradient_not_exchanged(parameter.shape))

    def _agreed(self, closure: Closure, optimizer: torch.optim.Optimizer, clip: float | None) -> Closure:
        """Average the loss: line searches compare losses, so replicas part unless every worker sees the same one."""

        def evaluate() -> Any:
            with torch.enable_grad():
                loss = closure()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
            return self._average_loss(loss)

        return evaluate

    def watch(self, optimizer: torch.optim.Optimizer, *, clip_norm: float | None) -> None:
        """Replace `step` of the user's own object."""
        original_step = optimizer.step

        def step(this: torch.optim.Optimizer, closure: Closure | None = None) -> Any:
            return self.step(this, original_step, closure, clip_norm)

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]  # the point of this module
