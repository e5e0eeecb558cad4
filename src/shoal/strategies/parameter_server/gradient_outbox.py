"""Gradients on their way to servers: hooks that hand each one over as soon as backward has made it.

In the batches of a step before the last, gradients are kept here and added up. In the last batch each gradient leaves
as soon as it is made; those that never come are zeros, and leave when the update is asked for. A gradient that the
script changed after it had left is noticed then. Hooks run in autograd's threads, of which every device has one. Not
here: what becomes of gradients (`parameters.client.parameter_client`), and when an update is asked for
(`parameter_server`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from shoal.data.order import key_of
from shoal.errors import UsageError
from shoal.parameters.client.client_push import OutgoingPush
from shoal.strategies import texts
from shoal.strategies.parameter_server.host_memory import in_host_memory, numbers
from shoal.strategies.parameter_server.parameter_table import ServedParameter
from shoal.strategies.replica.autograd_node import accumulator
from shoal.strategies.strategy import Iteration

NOISE_KEY = 9  # see `data.order`: keys for different uses start from different numbers


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on every gradient: the same for the same seed, worker and push."""

    deviation: float
    seed: int
    worker: int


@dataclass(frozen=True)
class _Sent:
    gradient: torch.Tensor
    version: int  # torch's counter of changes in place
    probe: torch.Tensor | float  # one of its values: gradient scalers change gradients without counting

    @classmethod
    def of(cls, gradient: torch.Tensor) -> Self:
        probe = _probe(gradient)
        return cls(gradient, gradient._version, probe if isinstance(probe, float) else probe.clone())

    def is_still(self, gradient: torch.Tensor) -> bool:
        """The same tensor, with no change counted."""
        return gradient is self.gradient and gradient._version == self.version


def _probe(gradient: torch.Tensor) -> torch.Tensor | float:
    """A value from the gradient's middle; 0 if it has none. A view where reading would wait for a device."""
    if gradient.is_sparse or not gradient.numel():
        return 0.0
    value = gradient[tuple(size // 2 for size in gradient.shape)]
    return float(value) if gradient.is_cpu else value.detach()


class GradientOutbox:
    """One per worker, for all models. `open_push` begins what a step's gradients are put into."""

    def __init__(
        self, entries: Sequence[ServedParameter], open_push: Callable[[], OutgoingPush], noise: Noise | None
    ) -> None:
        self._entries = entries
        self._open_push = open_push
        self._noise = noise
        self._pushes = 0  # begun so far
        self._generator = torch.Generator()
        self._guard = threading.Lock()  # a model on several devices gets gradients in several threads
        self._iteration: Iteration | None = None
        self._push: OutgoingPush | None = None  # of the present step, once its first gradient is there
        self._sent: dict[int, _Sent] = {}  # by number of the entry
        self._held: dict[int, torch.Tensor] = {}  # sums over the batches before the last
        self._aside: dict[int, torch.Tensor] = {}  # what `.grad` held before this backward
        self._came: set[int] = set()  # in this iteration
        self._left: list[tuple[torch.Tensor, float]] = []  # gradients that have left, and the factor of each
        self._is_open = False  # a backward is going on
        self._nodes = [accumulator(entry.parameter) for entry in entries]  # torch keeps them only while referred to
        self._handles: list[Any] = []
        for number, (entry, node) in enumerate(zip(entries, self._nodes, strict=True)):
            self._handles.append(node.register_prehook(partial(self._before, number)))
            register: Any = entry.parameter.register_post_accumulate_grad_hook
            self._handles.append(register(partial(self._after, number)))

    def begin(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._came.clear()
        if iteration.is_first:
            self._reset()

    def end(self) -> None:
        """The batch is over; a push that was not taken is of no use."""
        iteration, self._iteration = self._iteration, None
        self._is_open = False
        if iteration is None or iteration.is_last or iteration.is_void:
            self._reset()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._nodes = [], []
        self._reset()

    def take(self, *, is_needed: bool = False) -> OutgoingPush | None:
        """The step's push with everything in it. None: there was no backward.

        Where a push `is_needed` all the same, it is one of zeros.
        """
        if self._push is None and not self._held and not is_needed:
            return None
        self._check_unchanged()
        for number, entry in enumerate(self._entries):
            if number not in self._sent:
                held = self._held.pop(number, None)
                gradient = torch.zeros(entry.parameter.shape, dtype=entry.parameter.dtype) if held is None else held
                self._put(number, entry, gradient, scale=1.0)
        assert self._push is not None
        return self._push

    def norm(self) -> float:
        """The norm of all gradients in the push that was taken."""
        norms = numbers([torch.linalg.vector_norm(gradient) for gradient, _ in self._left])
        return math.hypot(*(norm * scale for norm, (_, scale) in zip(norms, self._left, strict=True)))

    def _reset(self) -> None:
        self._push = None  # the next push gives up one that is not committed
        self._left.clear()
        self._sent.clear()
        self._held.clear()
        self._aside.clear()

    # In backward

    def _before(self, number: int, _gradients: tuple[torch.Tensor, ...]) -> None:
        """Set aside what `.grad` holds from an earlier batch of the step, which is counted already."""
        iteration, parameter = self._iteration, self._entries[number].parameter
        if iteration is None or parameter.grad is None or number in self._sent:
            return
        if not iteration.is_first or number in self._came:
            self._aside[number], parameter.grad = parameter.grad, None

    def _after(self, number: int, parameter: torch.Tensor) -> None:
        iteration = self._iteration
        if iteration is None:
            return  # backward outside a loop: the script's own business
        if not self._is_open:
            self._is_open = True
            queue: Any = torch.autograd.Variable._execution_engine.queue_callback
            queue(self._finish)
        entry = self._entries[number]
        if number in self._sent:
            raise UsageError(texts.second_gradient(entry.name, iteration.step))
        gradient, scale = parameter.grad, self._scale(iteration)
        assert gradient is not None
        self._came.add(number)
        if not iteration.is_last:
            held = self._held.get(number)
            part = gradient.detach() * scale
            self._held[number] = part if held is None else held.add_(part)
            return
        held = self._held.pop(number, None)
        if held is None:
            self._put(number, entry, gradient, scale=scale)
        else:
            self._put(number, entry, held.add_(gradient.detach(), alpha=scale), scale=1.0)
        self._sent[number] = _Sent.of(gradient)

    def _scale(self, iteration: Iteration) -> float:
        return iteration.weight / iteration.step_samples if iteration.step_samples else 0.0

    @torch.no_grad()
    def _put(self, number: int, entry: ServedParameter, gradient: torch.Tensor, *, scale: float) -> None:
        with self._guard:
            if self._push is None:
                self._push, self._pushes = self._open_push(), self._pushes + 1
            push = self._push
        dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
        if self._noise is not None:
            dense, scale = dense * scale + self._drawn(self._noise, number, dense), 1.0
        coded = push.put(entry.name, in_host_memory(dense), scale=scale)
        self._left.append((dense, scale) if coded is None else (coded, 1.0))

    def _drawn(self, noise: Noise, number: int, like: torch.Tensor) -> torch.Tensor:
        """Noise for one gradient, drawn on the CPU, so that it is the same on every kind of device."""
        with self._guard:
            self._generator.manual_seed(key_of(NOISE_KEY, noise.seed, noise.worker, self._pushes, number))
            drawn = torch.randn(like.shape, generator=self._generator, dtype=torch.float32)
        return drawn.to(like) * noise.deviation

    def _finish(self) -> None:
        """End of a backward: add what was set aside to what came, as the script expects."""
        self._is_open = False
        for number, before in self._aside.items():
            parameter = self._entries[number].parameter
            parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
            if number in self._sent:
                self._sent[number] = _Sent.of(parameter.grad)
        self._aside.clear()

    def _check_unchanged(self) -> None:
        present = [
            (entry.name, self._sent[number], entry.parameter.grad)
            for number, entry in enumerate(self._entries)
            if number in self._sent and entry.parameter.grad is not None
        ]
        changed = [name for name, sent, gradient in present if not sent.is_still(gradient)]
        if not changed:
            probes = [*(sent.probe for _, sent, _ in present), *(_probe(gradient) for _, _, gradient in present)]
            values = numbers(probes)
            pairs = zip(present, values, values[len(present) :], strict=False)
            changed = [name for (name, _, _), before, after in pairs if not _is_same(before, after)]
        if changed:
            raise UsageError(texts.gradient_changed(changed[0]))


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
