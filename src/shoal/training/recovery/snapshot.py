"""What a void step must give back: buffers, kept objects, gradients held over from before, learning rates, and a
codec's residual.

Taken when the first batch of a step is about to be yielded, restored when that step turns out to be void. Parameters
and optimizer state are not in it: a void step never changed them (`optimizers` has the undo copies where it may have).
The snapshot of a stretch has them, since its steps change them before anybody knows whether the stretch counts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from shoal.events import Advised
from shoal.strategies.peers.peers import Peers
from shoal.strategies.replica.model_walk import modules_of, parameters_of
from shoal.training import texts
from shoal.training.model.optimizers import UndoCopy
from shoal.training.watched import Kept, Watched
from shoal.values import Cursor
from shoal.wire.tables import Range


@dataclass(frozen=True)
class UnitStart:
    """Where this worker was when the present unit of commit began: a step, or a stretch of them."""

    step: int
    updates: int  # optimizer steps taken since the script began
    cursor: Cursor
    gaps: tuple[Range, ...]
    samples: int = 0  # of all workers in the unit's steps before the present one


class StepSnapshot:
    """Reused from step to step, and so is the memory of its copies."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: the buffer and its copy
        self._places: list[tuple[nn.Module, str, torch.Tensor]] = []  # which object was which module's buffer
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._kept: dict[str, dict[str, Any]] = {}
        self._groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._updated: list[UndoCopy] = []

    def take(
        self,
        models: Iterable[nn.Module],
        kept: Mapping[str, Kept],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        of_stretch: bool = False,
    ) -> None:
        walks = [modules_of(model) for model in models]
        self._places = [
            (module, name, buffer)
            for modules in walks
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._buffers = {id(buffer): self._copy_of(buffer) for _, _, buffer in self._places}
        self._gradients = [
            (parameter, None if parameter.grad is None else parameter.grad.clone())
            for modules in walks
            for parameter in parameters_of(modules)
        ]
        self._kept = {name: copy.deepcopy(thing.state_dict()) for name, thing in kept.items()}
        self._groups = [
            (group, {name: copy.copy(value) for name, value in group.items() if name != "params"})
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        self._updated = [UndoCopy(optimizer) for optimizer in optimizers] if of_stretch else []

    def _copy_of(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = self._buffers.get(id(buffer))
        if known is None or known[0] is not buffer or known[1].shape != buffer.shape:
            return buffer, buffer.detach().clone()
        known[1].copy_(buffer.detach())
        return known

    @torch.no_grad()
    def restore(self, kept: Mapping[str, Kept]) -> None:
        for updated in self._updated:
            updated.restore()
        for buffer, saved in self._buffers.values():
            buffer.copy_(saved)
        for module, name, buffer in self._places:  # a script may have assigned another tensor
            setattr(module, name, buffer)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for name, state in self._kept.items():
            if name in kept:
                kept[name].load_state_dict(copy.deepcopy(state))
        for group, values in self._groups:
            group.update(values)


class Residual:
    """What a codec left out of this worker's gradients, and what becomes of it when the group has broken.

    The residual changes whenever the worker encodes. After a void unit it goes back if the unit is redone. It stays if
    the unit was applied elsewhere and this worker copies the result: what the worker has sent is in that sum, and the
    old residual would count twice. A worker that the others went on without starts with none.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._before: Mapping[str, torch.Tensor] | None = None  # at the start of a unit that may be redone

    def begin_unit(self) -> None:
        self._before = self._peers.codec.state()

    def commit(self) -> None:
        """The present unit of steps is applied here: nothing of it will be redone."""
        self._before = None

    def settle(self, *, ahead: int, holds: int) -> None:
        """In a new generation. `ahead`: steps that are applied in the state which all go on with, but not here.

        `holds`: the generation that agreed on this worker's state before.
        """
        before, self._before = self._before, None
        peers, generation = self._peers, self._peers.generation
        if peers.codec.raw:
            return
        if peers.worker not in generation.holders:
            peers.drop_residual("the others have gone on without this worker")
        elif before is not None and ahead == 0:
            peers.codec.load(before)
        if peers.group.rank == 0:
            gone = [lost.worker for lost in generation.lost if lost.generation >= holds]
            told = (texts.residual_lost(peers.codec.name, worker) for worker in gone)
            peers.report(*(Advised(worker=peers.worker, text=text) for text in told))


class CommitUnit:
    """The present unit of commit: where it began, and what goes back if it is void."""

    def __init__(self, peers: Peers) -> None:
        self.start: UnitStart | None = None  # None before the unit's first batch
        self._snapshot = StepSnapshot()
        self._residual = Residual(peers)

    def begin(self, start: UnitStart) -> None:
        self.start = start
        self._residual.begin_unit()

    def take_snapshot(self, watched: Watched, *, of_stretch: bool) -> None:
        self._snapshot.take(watched.models.values(), watched.kept, watched.optimizers, of_stretch=of_stretch)

    def add_samples(self, samples: int) -> None:
        """A step was applied that does not end the unit."""
        if self.start is not None:
            self.start = replace(self.start, samples=self.start.samples + samples)

    def commit(self) -> None:
        """The unit counts, whatever happens from now on."""
        self.start = None
        self._residual.commit()

    def go_back(self, kept: Mapping[str, Kept]) -> UnitStart | None:
        """The unit is void: restore what the script's code changed in it. Returns where the unit began."""
        start, self.start = self.start, None
        self._snapshot.restore(kept)
        return start

    def drop(self) -> None:
        """Forget the unit: another one begins with the next batch."""
        self.start = None

    def settle(self, *, ahead: int, holds: int) -> None:
        """In a new generation; see `Residual.settle`."""
        self.start = None
        self._residual.settle(ahead=ahead, holds=holds)
