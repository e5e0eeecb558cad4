"""The interface of a strategy: how replicas agree on the model.

A strategy is told of every model and of the start and the end of every batch; gradients reach it through hooks, inside
`backward()`. Its `manners` say when workers meet and what the unit of commit is. A failed exchange never raises: it
marks the batch's `Iteration` as broken, and the loop asks for recovery before the next batch. Not here: how workers
agree where they meet (`replica`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shoal.errors import ExchangeFailed
from shoal.manners import Manners
from shoal.strategies.free_running import FreeRunning
from shoal.strategies.peers.peers import Breakage, Peers
from shoal.wire.tables import Range


@dataclass(frozen=True)
class Commit:
    """Where the whole job was when an update of one worker's own was applied."""

    step: int  # updates of all workers so far, with this one
    base: int  # an update of the job; see `used`
    used: int  # samples that all updates after `base` have used


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
    meets: bool = True  # all workers meet in this batch: its exchange carries their votes and ends a stretch
    exchanges: int = 0  # whole exchanges in this batch so far
    updates: int = 0  # optimizer steps taken in this batch so far
    waited: float = 0.0  # seconds the script was held up by exchanges
    idle: float = 0.0  # of those, seconds in which no byte moved: a peer was not there yet
    breakage: Breakage | None = None  # set when the group failed
    digest: int | None = None  # of this worker's parameters, for the step's next exchange to compare; taken by it
    positions: tuple[Range, ...] = ()  # leased ones that the step has used up after this batch
    commit: Commit | None = None  # set where the step was applied as this worker's own update
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
    factor: float  # between the learning rates to use and those that the script set
    clip_norm: float | None


class Strategy(ABC):
    """How replicas agree on the model."""

    manners: Manners
    free: FreeRunning | None = None  # set where workers meet when called
    held = (0, 0)  # blocks of the job's parameters that servers hold, and their bytes
    replaced = 0  # updates that servers had applied to values which were then replaced

    @abstractmethod
    def attach(self, model: nn.Module, name: str) -> None:
        """Watch a model's gradients."""

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
    def rebind(self) -> None:
        """The peers have a new group: use it from now on, and drop all that was in flight."""

    @abstractmethod
    def detach(self) -> None:
        """Let go of all models: the job is over for this script."""

    # What most strategies need not override

    def prepare(  # noqa: B027
        self, optimizers: Sequence[torch.optim.Optimizer], *, step: int, holds_state: bool
    ) -> None:
        """A loop is about to begin, or a newcomer is about to be let into it: all optimizers are known now.

        `step`: steps applied so far. `holds_state`: this worker's state is the job's, not that of a newcomer. Raises
        ExchangeFailed.
        """

    def update(self, stepping: Stepping) -> None:  # noqa: B027
        """The script calls `optimizer.step()`. Called only where updates are done elsewhere."""

    def finish(self, iteration: Iteration) -> None:  # noqa: B027
        """The script asks for the next batch: do now what is left of this batch's exchange."""

    def compared(self, digest: int | None) -> None:  # noqa: B027
        """All replicas were the same at the end of a loop. `digest`: of the parameters; None: nobody took one."""

    def take_replaced(self) -> int:
        """Updates that were replaced since the last call."""
        count, self.replaced = self.replaced, 0
        return count

    def state(self) -> dict[str, Any]:
        """The strategy's own part of the job's state: numbers, strings and tensors."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take over what `state` gave on a member, or in the job that is resumed.

        A resumed job may have had another strategy: ignore entries that this one does not know.
        """

    def optimizer_states(self) -> list[dict[str, dict[str, torch.Tensor]]] | None:
        """By optimizer and parameter's name, where servers have the optimizers' states; None elsewhere."""
        return None
