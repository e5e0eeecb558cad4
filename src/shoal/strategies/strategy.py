"""The interface of a strategy: how replicas agree on the model.

A strategy is told of every model, of the start and the end of every batch, and asked for agreement at points that all
workers pass; gradients reach it through hooks, inside `backward()`. A failed exchange never raises: it marks the
batch's `Iteration` as broken, and the loop asks for recovery before the next batch.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from shoal.errors import ExchangeFailed
from shoal.strategies.peers import Breakage, Peers


@dataclass
class Iteration:
    """One batch of a loop on this worker, from the moment it is yielded. Written by the strategy and the optimizers."""

    step: int  # number of the step this batch belongs to; counts applied steps from 0
    weight: float  # this worker's samples in the batch, or what `run.weight` said
    earlier_weight: float  # sum over the step's accumulated batches before this one
    step_samples: int  # of all workers and all accumulated batches of the step
    samples: int = 0  # this worker's own in this batch
    own_samples: int = 0  # this worker's own in the step's batches so far, with this one
    is_first: bool = True  # of the step's accumulated batches
    is_last: bool = True
    exchanges: int = 0  # whole exchanges in this batch so far
    updates: int = 0  # optimizer steps taken in this batch so far
    waited: float = 0.0  # seconds the script was held up by exchanges
    idle: float = 0.0  # of those, seconds in which no byte moved: a peer was not there yet
    breakage: Breakage | None = None  # set when the group failed
    digest: int | None = None  # of this worker's parameters, for the step's next exchange to compare; taken by it
    is_void: bool = False  # the breakage came before the exchange was whole: nothing of this step may remain

    def mark_broken(self, operation: str, failure: ExchangeFailed) -> None:
        """A collective failed. A step whose exchange was whole by then stays applied; any other is void."""
        if self.breakage is None:
            self.breakage = Breakage.by(failure, self.step, operation)
        self.is_void = self.is_void or self.exchanges == 0

    def mark_void(self, operation: str, failure: ExchangeFailed) -> None:
        """An exchange of gradients failed: nothing of this step may remain, earlier exchanges of it included."""
        self.mark_broken(operation, failure)
        self.is_void = True

    @property
    def step_weight(self) -> float:
        """This worker's weight in the step so far."""
        return self.earlier_weight + self.weight

    @property
    def may_update(self) -> bool:
        """Whether `optimizer.step()` should change anything."""
        return self.is_last and not self.is_void


@dataclass(frozen=True)
class Agreement:
    """What all workers found out together at one point."""

    stop: str | None = None  # reason, if any worker wants the loops to end
    is_same: bool = True  # all workers have the same `terms`


@dataclass
class Votes:
    """What this worker brings to the next agreement."""

    stop: str | None = None  # reason, where this worker wants all loops to end
    updates: int = 0  # optimizer steps taken since the script began; must be equal everywhere
    stop_seen: bool = False  # an exchange showed that some worker votes for a stop; all workers saw it at that step
    save: bool = False  # this worker wants a checkpoint of the step that is being made
    busy: bool = False  # this worker is still writing the one before
    save_seen: bool = False  # in the present step's exchange some worker wanted one
    busy_seen: bool = False  # and some worker could not
    leaving: bool = False  # this worker has said in the present step's exchange that it hands its place over
    leaving_seen: int = 0  # how many have
    regroup_seen: bool = False  # some worker knows of somebody who waits to be let in


@contextmanager
def waiting(iteration: Iteration, peers: Peers) -> Iterator[None]:
    """Count the time inside as time in which the script was held up."""
    started, idle = time.perf_counter(), peers.idle_seconds
    try:
        yield
    finally:
        waited = time.perf_counter() - started
        iteration.waited += waited
        iteration.idle += min(waited, peers.idle_seconds - idle)


@dataclass(frozen=True)
class Stepping:
    """One call of `optimizer.step()` in an iteration that may update."""

    optimizer: torch.optim.Optimizer
    factor: float  # what learning rates are multiplied by, against those that the script set
    clip_norm: float | None


class Strategy(ABC):
    """How replicas agree on the model."""

    votes: Votes
    is_free = False  # workers of a loop do not wait for each other: see `training.free_loop`
    updates_elsewhere = False  # `update` does what `optimizer.step()` is to do
    replaced = 0  # updates that servers had applied to values that were then replaced, whoever knew of them
    compared: int | None = None  # digest of the parameters in the last meeting, where replicas were compared there

    @abstractmethod
    def attach(self, model: nn.Module, name: str) -> None:
        """Watch a model's gradients."""

    @abstractmethod
    def unify(self, model: nn.Module, name: str) -> None:
        """Check that all workers have the same model, and give all the same weights. Raises ExchangeFailed."""

    @abstractmethod
    def begin(self, iteration: Iteration) -> None:
        """A batch is about to be yielded."""

    @abstractmethod
    def end(self) -> None:
        """The batch is over: gradients that come from now on are the script's own business."""

    @abstractmethod
    def watches(self, parameter: torch.Tensor) -> bool:
        """Whether this parameter's gradient is exchanged."""

    @abstractmethod
    def agree(self, point: str, *, compare: bool = False, terms: int = 0) -> Agreement:
        """Meet all workers at a point of the script that all must pass. Raises ExchangeFailed or WorkersDisagree.

        Changed buffers are averaged on the way. With `compare` the replicas must be equal, bit for bit. `terms` is a
        number below 2**40 that stands for what the script has called so far.
        """

    @abstractmethod
    def digest(self, names: Collection[str] | None = None) -> int:
        """A number that differs, almost surely, where any bit of any parameter differs. Below 2**40.

        Of these models only, in the order in which they were attached, where `names` are given.
        """

    @abstractmethod
    def rebind(self) -> None:
        """The peers have a new group: use it from now on, with no trace of what was in flight."""

    @abstractmethod
    def state_replaced(self) -> None:
        """Parameters and buffers were copied from a member: what they are now is what all have agreed on."""

    @abstractmethod
    def is_changed(self, buffer: torch.Tensor) -> bool:
        """Whether it is not what it was after the last exchange, so that the next one averages it."""

    @abstractmethod
    def forget(self, buffer: torch.Tensor) -> None:
        """It counts as changed, whatever it is: it was when the state was taken."""

    @abstractmethod
    def orders(self) -> dict[str, list[str]]:
        """By model: names of parameters, in the order in which their gradients travel; part of the state."""

    @abstractmethod
    def follow(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Take over what `orders` gave on a member, or in the job that is resumed."""

    def prepare(  # noqa: B027  most need not
        self, optimizers: Sequence[torch.optim.Optimizer], *, step: int, holds_state: bool
    ) -> None:
        """A loop is about to begin, or a newcomer is about to be let into it: what is optimized is known now.

        `step`: applied so far. `holds_state`: this worker's state is the job's, not that of a newcomer. Raises
        ExchangeFailed.
        """

    def update(self, stepping: Stepping) -> None:  # noqa: B027  most leave it to the optimizer
        """The script calls `optimizer.step()`; only where updates are done elsewhere."""

    def finish(self, iteration: Iteration) -> None:  # noqa: B027  most have done it in backward
        """The script asks for the next batch: what is left of this one's exchange is done now."""

    def optimizer_states(self) -> list[dict[str, dict[str, torch.Tensor]]] | None:
        """By optimizer and parameter's name, where it is not the optimizers that have them."""
        return None

    @abstractmethod
    def detach(self) -> None:
        """Let go of all models: the job is over for this script."""
