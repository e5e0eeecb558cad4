"""Sees every `optimizer.step()` of the script's thread, and ends the script at the first one that is a mistake.

torch calls a hook before each step of any optimizer. A step of a handed-over optimizer in a loop costs two comparisons.
Not here: what is a mistake (`step_verdicts`).
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shoal.collectives.group import Group
from shoal.errors import UsageError
from shoal.events import ScriptDoubtful
from shoal.training import texts
from shoal.training.mistakes.step_verdicts import StepSeen, judge
from shoal.training.script.meetings import gather
from shoal.training.session import Session


@dataclass
class _Stranger:
    """An optimizer that was not handed over."""

    sample: torch.Tensor  # a parameter of its own
    step: int  # of the job, in which it stepped last; -1: outside loops
    outside: int = 0  # its steps outside loops, one after another
    version: int = -1  # of the sample after that: any later change of its values raises it
    is_told: bool = False


class StepWatch:
    """Watches while `train` runs, in the thread that enters it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._strangers: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Stranger] = weakref.WeakKeyDictionary()
        self._told: set[str] = set()  # warnings
        self._owners: dict[int, str] = {}  # by a parameter's id: the model that it belongs to
        self._outside = 0  # steps outside loops that were right, since the worker was alone
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._hooks = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._session.watched.gradients.release()

    def end(self) -> None:
        """`train` has returned: look back at all that it did. Raises UsageError."""
        session, place = self._session, self._session.place
        if place.loops == 0 and self._outside:
            self._warn(texts.trained_outside(self._outside))
        has_met = place.loops > 0 or place.points > 0
        if not has_met and session.peers.group.size > 1 and not session.is_catching_up:
            self._meet_at_last()

    def _meet_at_last(self) -> None:
        """Other workers may be in their first call of `run`: then all are told of that call."""
        # A script that asks for its rank, on any worker, shares the work out by itself.
        own = torch.tensor(float(self._session.place.knows_rank))

        def reduce(group: Group, label: str) -> float:
            total = own.clone()
            group.all_reduce(total, label=label).wait()
            return float(total)

        if not gather(self._session, "end of the script", reduce, alone=0.0):
            raise UsageError(texts.never_met(self._session.peers.group.size))

    def _is_foreign(self) -> bool:
        """Whether the step is none of this script's: another thread's, or that of a process which the script forked."""
        return threading.get_ident() != self._thread or os.getpid() != self._process

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or self._session.steps.is_stepping or self._is_foreign():
            return
        stranger = self._strangers.get(optimizer)
        if stranger is not None and stranger.is_told:
            return
        has_closure = any(value is not None for value in (*args[1:], *kwargs.values()))  # the first is the optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not has_closure:
            parameters = [parameter for parameter in parameters if parameter.grad is not None]
        if parameters:
            self._look(optimizer, parameters)

    def _look(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        session, watched = self._session, self._session.watched
        in_loop = not session.batch.is_between
        is_handed = any(optimizer is known for known in watched.optimizers)
        model = self._owner(parameters)
        is_stranger = not is_handed and not model
        if not in_loop and (is_handed or model) and not any(map(_is_moved, parameters)):
            return  # gradients of zero, to make an optimizer's state
        seen = StepSeen(
            optimizer=type(optimizer).__name__,
            shape=parameters[0].shape,
            workers=session.peers.group.size,
            in_loop=in_loop,
            is_handed=is_handed,
            model=model,
            has_models=bool(watched.models),
            has_loops=session.place.loops > 0 or in_loop,
            goes_on=in_loop and is_stranger and self._goes_on(optimizer, parameters),
            outside_steps=self._outside_steps(optimizer, parameters) if is_stranger and not in_loop else 0,
        )
        finding = judge(seen)
        if finding is None:
            self._outside += not in_loop and bool(is_handed or model)
        elif finding.is_error:
            raise UsageError(finding.text)
        else:
            self._strangers[optimizer].is_told = True
            self._warn(finding.text)

    def _owner(self, parameters: list[torch.Tensor]) -> str:
        models = self._session.watched.models
        if set(self._owners.values()) != set(models):
            self._owners = {id(each): name for name, model in models.items() for each in model.parameters()}
        return next((self._owners[id(each)] for each in parameters if id(each) in self._owners), "")

    def _goes_on(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> bool:
        """Whether the optimizer goes on with module parameters as it left them in an earlier step of the job.

        Inner loops begin anew in each step: with another copy of a model, or with the model's values copied in.
        """
        iteration, sample = self._session.iteration, parameters[0]
        if iteration is None or not isinstance(sample, nn.Parameter):
            return False
        stranger = self._strangers.get(optimizer)
        if stranger is None or stranger.sample is not sample:
            self._strangers[optimizer] = _Stranger(sample, iteration.step)
            return False
        goes_on = iteration.step != stranger.step and sample._version == stranger.version
        stranger.step = iteration.step
        return goes_on

    def _outside_steps(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> int:
        """How often the optimizer has trained module parameters outside loops, each time from where it left them."""
        sample = parameters[0]
        if not isinstance(sample, nn.Parameter):
            return 0
        stranger = self._strangers.get(optimizer)
        if stranger is None or stranger.sample is not sample or sample._version != stranger.version:
            stranger = self._strangers[optimizer] = _Stranger(sample, step=-1)
        stranger.outside += 1
        return stranger.outside

    def _after(self, optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not self._strangers:
            return
        if (stranger := self._strangers.get(optimizer)) is not None:
            stranger.version = stranger.sample._version

    def _warn(self, text: str) -> None:
        """Say it once: a script may make an optimizer anew in each epoch."""
        if text in self._told:
            return
        self._told.add(text)
        self._session.peers.report(ScriptDoubtful(worker=self._session.peers.worker, text=text))


def _is_moved(parameter: torch.Tensor) -> bool:
    """Whether a step may change the parameter: without a gradient, a closure computes it."""
    gradient = parameter.grad
    return gradient is None or gradient.is_sparse or bool(gradient.any())
