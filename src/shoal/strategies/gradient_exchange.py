"""When the gradients of one model are exchanged: hooks that turn `backward()` into an exchange.

    first gradient of a backward    a round opens; the note (weights, votes, changed buffers) leaves
    each gradient                   goes into its slot; complete buckets leave in order
    end of that backward            missing gradients become zeros, the rest leaves, the script waits for all

A failed round marks the iteration as broken and does not raise. Not here: the flat memory (`gradient_buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from shoal.collectives.group import Group, Pending
from shoal.errors import ExchangeFailed
from shoal.strategies.buffers import BufferAverage
from shoal.strategies.gradient_buckets import GradientBuckets
from shoal.strategies.notes import Note, NoteBoard
from shoal.strategies.strategy import Iteration, waiting


class GradientExchange:
    """Exchanges one model's gradients and buffers in every backward that reaches it."""

    def __init__(self, model: nn.Module, name: str, board: NoteBoard, *, bucket_bytes: int) -> None:
        self._model = model
        self._name = name
        self._board = board
        self._bucket_bytes = bucket_bytes
        self._buffers = BufferAverage(model)
        self._handles: list[Any] = []
        self._nodes: list[Any] = []  # torch keeps them only while somebody refers to them
        self._trained: list[torch.Tensor] = []
        self._buckets = GradientBuckets([], bucket_bytes=bucket_bytes)
        self._iteration: Iteration | None = None
        self._group: Group | None = None
        self._is_open = False  # a backward is running that has reached this model
        self._marked: set[int] = set()  # parameters whose gradient came in this backward
        self._note: Pending | None = None
        self._sent_note: Note | None = None

    def begin(self, iteration: Iteration, group: Group) -> None:
        """A batch is about to be yielded. Parameters frozen or unfrozen since the last one are noticed here."""
        is_alone = group.size == 1 and iteration.is_first and iteration.is_last
        self._iteration, self._group = (None if is_alone else iteration), group
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if len(trained) != len(self._trained) or any(a is not b for a, b in zip(trained, self._trained, strict=True)):
            self._watch(trained)

    def rebind(self) -> None:
        """Forget a round that failed."""
        self._buckets.reset()
        self._is_open = False
        self._note = None
        self._iteration = None

    def _watch(self, trained: Sequence[torch.Tensor]) -> None:
        for handle in self._handles:
            handle.remove()
        self._trained = list(trained)
        self._buckets = GradientBuckets(self._trained, bucket_bytes=self._bucket_bytes)
        # Hooks of the accumulating node run in `backward()` only; hooks of the tensor would run in autograd.grad too.
        self._nodes = [_accumulator(parameter) for parameter in self._trained]
        self._handles = []
        for index, (parameter, node) in enumerate(zip(self._trained, self._nodes, strict=True)):
            self._handles.append(node.register_prehook(partial(self._before, index)))
            register: Callable[[Callable[[torch.Tensor], None]], Any] = parameter.register_post_accumulate_grad_hook
            self._handles.append(register(partial(self._after, index)))

    def _before(self, index: int, _gradients: tuple[torch.Tensor, ...]) -> None:
        if self._iteration is not None:
            self._buckets.set_aside(index)

    @torch.no_grad()
    def _after(self, index: int, _parameter: torch.Tensor) -> None:
        iteration, group = self._iteration, self._group
        if iteration is None or group is None:
            return  # backward outside a loop: the script's own business
        self._open(iteration, group)
        self._buckets.add(index, _scale(iteration))
        self._marked.add(index)
        if iteration.is_last:
            self._buckets.mark_ready(index)
            self._buckets.launch_ready(group, self._label(iteration))

    def _operation(self, iteration: Iteration) -> str:
        return f"exchange {iteration.exchanges} of {self._name}"

    def _label(self, iteration: Iteration) -> str:
        return f"step {iteration.step}, {self._operation(iteration)}"

    def _open(self, iteration: Iteration, group: Group) -> None:
        """First gradient of a backward: send the note now, so that it travels under the rest of backward."""
        if self._is_open:
            return
        self._is_open = True
        self._marked = set()
        if iteration.is_last:
            self._sent_note = self._board.write(iteration.step_weight, self._buffers.changed())
            self._note = group.all_reduce(self._sent_note.vector, label=self._label(iteration))
        queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
        queue(self._finish)

    def _finish(self) -> None:
        """End of the backward that opened the round."""
        self._is_open = False
        iteration, group = self._iteration, self._group
        if iteration is None or group is None or not iteration.is_last:
            return
        label = self._label(iteration)
        try:
            with torch.no_grad(), waiting(iteration, self._board.peers):
                self._buckets.fill_missing(self._marked)
                self._buckets.launch_ready(group, label)
                self._complete(iteration, group, label)
        except ExchangeFailed as failure:
            iteration.mark_void(self._operation(iteration), failure)
            self._buckets.discard()

    def _complete(self, iteration: Iteration, group: Group, label: str) -> None:
        assert self._note is not None and self._sent_note is not None
        self._note.wait()
        reading = self._board.read(self._sent_note)
        share = iteration.step_weight / reading.weight if reading.weight else 0.0
        averaging = self._buffers.launch(group, reading.changed, weight=share, label=label)
        self._buckets.wait()
        averaging.finish()
        # Contributions were scaled by the samples that the plan foresaw; `run.weight` may have made it another total.
        self._buckets.publish(iteration.step_samples / reading.weight if reading.weight else 1.0)
        iteration.exchanges += 1


def _scale(iteration: Iteration) -> float:
    return iteration.weight / iteration.step_samples if iteration.step_samples else 0.0


def _accumulator(parameter: torch.Tensor) -> Any:
    """The autograd node that adds into `parameter.grad`."""
    with torch.enable_grad():
        edge = parameter.view_as(parameter).grad_fn
    assert edge is not None
    return edge.next_functions[0][0]
