"""When the gradients of one model are exchanged: hooks that turn `backward()` into an exchange.

    first gradient of a backward    a round opens; the votes (weights, votes, changed buffers) leaves
    each gradient                   is taken from autograd; complete groups leave in order
    end of that backward            missing gradients become zeros, the rest leaves, the script waits for all

Until then the group's own thread does the work. What is left at the end is done in the script's thread, which has
nothing else to do. Everything, the votes included, is left to the end for a model that fits into one group, and where
a thread would take backward's core away: ranks that share memory and have at most one core each.

The first exchange also learns in which order gradients come: rank 0 tells all, and newcomers take the order over with
the state. A failed round marks the iteration as broken and does not raise. Not here: what is exchanged
(`gradient_groups`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from shoal.collectives.group import Group, Pending
from shoal.errors import ExchangeFailed, ReplicasDiffer, UsageError
from shoal.strategies import texts
from shoal.strategies.all_reduce.gradient_groups import GradientGroups, Scales
from shoal.strategies.replica.autograd_node import accumulator
from shoal.strategies.replica.buffers import BufferAverage
from shoal.strategies.replica.model_walk import modules_of, parameters_of
from shoal.strategies.replica.votes import VoteBoard, VoteVector
from shoal.strategies.strategy import Iteration, waiting


@dataclass(frozen=True)
class Shared:
    """What the exchanges of all models have in common."""

    board: VoteBoard
    buffers: BufferAverage
    owners: dict[int, GradientExchange]  # by a parameter's id: a parameter of two models is exchanged by the first
    group_bytes: int


@dataclass(frozen=True)
class _Round:
    """One backward that has reached the model."""

    operation: str  # for people
    label: str
    scales: Scales
    sent: tuple[VoteVector, Pending] | None  # the votes, if it has left; nothing else may leave before it


class GradientExchange:
    """Exchanges one model's gradients in every backward that reaches it."""

    def __init__(self, model: nn.Module, name: str, shared: Shared) -> None:
        self.name = name
        self._model = model
        self._shared = shared
        self._handles: list[Any] = []
        self._nodes: list[Any] = []  # torch keeps them only while somebody refers to them
        self._watched: dict[int, str] = {}  # by a parameter's id: its name
        self._layout: list[tuple[int, torch.dtype, torch.Size]] = []  # of watched parameters when groups were made
        self._groups = GradientGroups([], group_bytes=shared.group_bytes)
        self.order: list[str] = []  # of gradients on their way, by name; empty until all have agreed on one
        self._ordered: frozenset[str] = frozenset()  # the names in `order`
        self._seen: list[str] = []  # the order of this step, which counts if the step does
        self._knows_order = False  # `order` names the parameters that are watched
        self._iteration: Iteration | None = None
        self._group: Group | None = None
        self._works_beside = True  # whether groups leave before the end of a backward
        self._least_bytes = 0  # of a group, for the links of the moment
        self._round: _Round | None = None
        self._known = {id(parameter): (entry, parameter) for entry, parameter in model.named_parameters()}
        for key in self._known:
            shared.owners.setdefault(key, self)

    def begin(self, iteration: Iteration, group: Group) -> None:
        """A batch is about to be yielded. Notices parameters that were thawed since the last batch."""
        if iteration.is_first:
            self._groups.reset()
        is_alone = group.size == 1 and iteration.is_first and iteration.is_last
        if group is not self._group:
            self._works_beside = not group.needs_a_core or _has_spare_core(group.size)
        self._iteration, self._group = (None if is_alone else iteration), group
        watched = [parameter for parameter in parameters_of(modules_of(self._model)) if self._is_watched(parameter)]
        layout = [(id(parameter), parameter.dtype, parameter.shape) for parameter in watched]
        # With a codec groups stay as they are, whatever links are measured: its residual belongs to them.
        least = group.least_bytes if self._shared.board.peers.codec.raw else 0
        if layout != self._layout:
            self._least_bytes = least
            self._watch(watched)
            self._layout = layout
        elif least != self._least_bytes and iteration.is_first:
            self._least_bytes = least
            self._regroup(watched)

    def _is_watched(self, parameter: torch.Tensor) -> bool:
        """Once watched, always watched: scripts freeze and thaw within an iteration.

        A newcomer has not been there when a parameter was trained that is frozen now: the order of gradients names it.
        """
        if id(parameter) not in self._known:
            raise UsageError(texts.new_parameter(self.name, parameter.shape))
        is_mine = self._shared.owners[id(parameter)] is self
        if not is_mine or parameter.requires_grad:
            return is_mine
        return id(parameter) in self._watched or self._known[id(parameter)][0] in self._ordered

    def end(self) -> None:
        if self._round is not None:  # a backward that raised
            self._round = None
            self._groups.reset()
        if self._seen and self._iteration is not None and not self._iteration.is_void:
            self.follow(self._seen)
        self._seen = []
        self._iteration = None

    def follow(self, order: Sequence[str]) -> None:
        """Between batches: all workers have agreed that gradients travel in this order."""
        self.order, self._ordered = list(order), frozenset(order)
        numbers = {entry: number for number, entry in enumerate(self._watched.values())}
        self._knows_order = numbers.keys() == set(order)
        if self._knows_order:
            encodes = not self._shared.board.peers.codec.raw
            named = [f"{self.name}/{entry}" for entry in numbers] if encodes else []
            self._groups.follow([numbers[entry] for entry in order], named=named)

    def rebind(self) -> None:
        """Forget a round that failed."""
        self._groups.reset()
        self._round = None
        self._seen = []
        self._iteration = None

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._nodes, self._layout = [], [], []
        self._watched, self._known = {}, {}
        self._groups = GradientGroups([], group_bytes=self._shared.group_bytes)

    def watches(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._watched

    def _watch(self, watched: Sequence[torch.Tensor]) -> None:
        for handle in self._handles:
            handle.remove()
        self._watched = {id(parameter): self._known[id(parameter)][0] for parameter in watched}
        if any(self._groups.keys):  # the residual of old groups belongs to none of the new ones
            self._shared.board.peers.drop_residual(f"{self.name} trains other parameters from now on")
        self._regroup(watched)
        # Hooks of the accumulating node run in `backward()` only; hooks of the tensor would run in autograd.grad too.
        self._nodes, self._handles = [], []
        for index, parameter in enumerate(watched):
            required = parameter.requires_grad  # False for one that is frozen at the moment
            parameter.requires_grad_(True)
            node = accumulator(parameter)
            self._nodes.append(node)
            self._handles.append(node.register_prehook(partial(self._before, index, parameter)))
            register: Callable[[Callable[[torch.Tensor], None]], Any] = parameter.register_post_accumulate_grad_hook
            self._handles.append(register(partial(self._after, index)))
            parameter.requires_grad_(required)

    def _regroup(self, watched: Sequence[torch.Tensor]) -> None:
        """Put the gradients of these parameters into groups. What batches before have brought in this step stays."""
        held = self._groups
        self._groups = GradientGroups(watched, group_bytes=self._shared.group_bytes, least_bytes=self._least_bytes)
        self.follow(self.order)
        self._groups.take_over(held)

    def _before(self, index: int, parameter: torch.Tensor, _gradients: tuple[torch.Tensor, ...]) -> None:
        """Runs for every gradient, during the script's computation: as short as can be."""
        if parameter.grad is not None and self._iteration is not None:
            self._groups.set_aside(index)

    def _after(self, index: int, parameter: torch.Tensor) -> None:
        """Runs for every gradient too: as short as can be."""
        current = self._round or self._open()
        if current is None:
            return  # backward outside a loop: the script's own business
        if index in self._groups.arrived:
            self._comes_again(index, parameter)
        elif self._groups.arrive(index) and current.sent is not None:
            assert self._group is not None
            self._groups.launch_ready(self._group, current.label, current.scales)

    def _comes_again(self, index: int, parameter: torch.Tensor) -> None:
        """A second gradient in one backward: fine while the first has not left."""
        if self._groups.has_left(index):
            raise UsageError(texts.gradient_came_twice(self._watched[id(parameter)], self.name))
        self._groups.add(index)

    def _open(self) -> _Round | None:
        """First gradient of a backward: send the votes now, so that it travels under the rest of backward."""
        iteration, group = self._iteration, self._group
        if iteration is None or group is None:
            return None
        operation = f"exchange {iteration.exchanges} of {self.name}"
        label = f"step {iteration.step}, {operation}"
        sent = None
        works_beside = self._works_beside or self._groups.is_on_gpu  # a GPU computes while a core exchanges
        if iteration.is_last and works_beside and self._groups.leave_early:
            sent = self._send_votes(iteration, group, label)
        scale = iteration.weight / iteration.step_samples if iteration.step_samples else 0.0
        if iteration.is_first and iteration.is_last and scale:
            # Scale while reducing, which costs nothing. Batches of different weights must be scaled before they add up.
            scales = Scales(each=1.0, group=scale)
        else:
            scales = Scales(each=scale, group=1.0)
        self._round = _Round(operation, label, scales, sent)
        queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
        queue(self._finish)
        return self._round

    def _send_votes(self, iteration: Iteration, group: Group, label: str) -> tuple[VoteVector, Pending]:
        own_digest, iteration.digest = iteration.digest, None
        changed = self._shared.buffers.changed()
        cast = self._shared.board.write(iteration.step_weight, changed, own_digest=own_digest)
        return cast, group.all_reduce(cast.vector, label=label)

    def _finish(self) -> None:
        """End of the backward that opened the round."""
        current, self._round = self._round, None
        iteration, group = self._iteration, self._group
        if current is None or iteration is None or group is None:
            return
        if not iteration.is_last:
            self._groups.hold(current.scales.each)
            return
        try:
            with torch.no_grad(), waiting(iteration, self._shared.board.peers):
                self._complete(current, iteration, group.here)
        except ExchangeFailed as failure:
            iteration.mark_void(current.operation, failure)
            self._groups.discard()

    def _complete(self, current: _Round, iteration: Iteration, group: Group) -> None:
        cast, pending = current.sent or self._send_votes(iteration, group, current.label)
        self._groups.launch_rest(group, current.label, current.scales)
        order = None if self._knows_order or self._seen else torch.tensor(self._groups.order())
        telling = None if order is None else group.broadcast(order, 0, label=f"{current.label}, order")
        pending.wait()
        reading = self._shared.board.read(cast)
        if len(set(reading.digests)) > 1:  # all see it here, and none applies this step
            raise ReplicasDiffer(f"the workers' parameters differ before step {iteration.step}")
        share = iteration.step_weight / reading.weight if reading.weight else 0.0
        averaging = self._shared.buffers.launch(group, reading.changed, weight=share, label=current.label)
        self._groups.wait()
        averaging.finish()
        if order is not None and telling is not None:
            telling.wait()
            names = list(self._watched.values())
            self._seen = [names[number] for number in order.tolist()]
        # Contributions were scaled by the expected samples; `run.weight` may have changed the total.
        self._groups.publish(iteration.step_samples / reading.weight if reading.weight else 1.0)
        iteration.exchanges += 1


def _has_spare_core(ranks: int) -> bool:
    """Whether this machine has more than a core for each of its ranks."""
    return len(os.sched_getaffinity(0)) > ranks
