"""Buffers of all models in the step's exchange: floats are averaged by samples, integers take the maximum.

Only buffers that some worker changed since the last exchange travel: averaging a constant would round it a little at
every step. Changes are found by comparing values: BatchNorm's kernels do not count up a tensor's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shoal.collectives.group import Group, Pending, Reduction
from shoal.strategies.replica.model_walk import buffers_of, modules_of


@dataclass(frozen=True)
class _Part:
    buffers: list[torch.Tensor]
    flat: torch.Tensor
    pending: Pending

    def write_back(self) -> None:
        offset = 0
        for buffer in self.buffers:
            buffer.copy_(self.flat[offset : offset + buffer.numel()].view(buffer.shape))
            offset += buffer.numel()


class Averaging:
    """Reductions of buffers that are under way."""

    def __init__(self, owner: BufferAverage, parts: list[_Part]) -> None:
        self._owner = owner
        self._parts = parts

    def finish(self) -> None:
        """Wait for all, then write all: buffers never hold half an exchange."""
        for part in self._parts:
            part.pending.wait()
        for part in self._parts:
            part.write_back()
        self._owner.remember()


class BufferAverage:
    """The buffers of all models. `refresh` is called before each batch, since scripts may replace buffers."""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._buffers: list[torch.Tensor] = []
        self._known: dict[int, torch.Tensor] = {}  # values at the last exchange, by the buffer's id

    def add(self, model: nn.Module) -> None:
        self._models.append(model)
        self.refresh()
        self.remember()

    def refresh(self) -> None:
        """Find the buffers that the models have now. A buffer that was replaced counts as changed."""
        found = {id(buffer): buffer for model in self._models for buffer in buffers_of(modules_of(model))}
        self._buffers = list(found.values())
        self._known = {key: known for key, known in self._known.items() if key in found}

    @torch.no_grad()
    def remember(self) -> None:
        """Take the present values as unchanged: only later changes count."""
        for buffer in self._buffers:
            known = self._known.get(id(buffer))
            if known is None or known.shape != buffer.shape or known.dtype != buffer.dtype:
                self._known[id(buffer)] = buffer.detach().clone()
            elif not torch.equal(known, buffer):
                known.copy_(buffer)

    def is_changed(self, buffer: torch.Tensor) -> bool:
        return not _same(self._known.get(id(buffer)), buffer)

    def forget(self, buffer: torch.Tensor) -> None:
        """Let this buffer count as changed, whatever its values."""
        self._known.pop(id(buffer), None)

    def changed(self) -> list[bool]:
        """One flag per buffer: its values are not those of the last exchange."""
        return [not _same(self._known.get(id(buffer)), buffer) for buffer in self._buffers]

    def launch(self, group: Group, changed: Sequence[bool], *, weight: float, label: str) -> Averaging:
        """Start reducing the buffers that changed anywhere. `weight` is this worker's part of all samples."""
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer, is_changed in zip(self._buffers, changed, strict=True):
            if is_changed:
                by_dtype.setdefault(buffer.dtype, []).append(buffer)
        parts = []
        for number, (dtype, buffers) in enumerate(by_dtype.items()):
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
            is_float = dtype.is_floating_point or dtype.is_complex
            if is_float:
                flat = flat * weight if weight else torch.zeros_like(flat)
            reduction = Reduction.SUM if is_float or dtype == torch.bool else Reduction.MAX
            pending = group.all_reduce(flat, label=f"{label}, buffers {number}", reduction=reduction)
            parts.append(_Part(buffers=buffers, flat=flat, pending=pending))
        return Averaging(self, parts)


def _same(known: torch.Tensor | None, buffer: torch.Tensor) -> bool:
    return known is not None and known.dtype == buffer.dtype and torch.equal(known, buffer)
