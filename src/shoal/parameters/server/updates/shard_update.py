"""The gradient of one update on one server: the scaled sum of what workers staged, unit by unit.

A single push with scale 1 is read in place. Otherwise the sum is made in a scratch that stays in the processor's cache,
so that it costs no further pass over main memory. A sum that must be clipped by its norm over all servers is kept until
that norm is known. Half types are summed in float32. Not here: the optimizer's step (`unit_rule`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from shoal.parameters.blocks.byte_views import torch_type
from shoal.parameters.blocks.part_layout import PartLayout, Unit
from shoal.parameters.ledger.effects import Update
from shoal.parameters.server.updates.staging import BufferPool, StagedPush
from shoal.parameters.server.updates.update_rules import clip_factor, present_values
from shoal.wire.tables import TableSpec

_HALVES = (torch.float16, torch.bfloat16)


class ShardUpdate:
    """An `effects.Update` with what is staged of it here. `close` it when all units are applied."""

    def __init__(self, table: TableSpec, layout: PartLayout, update: Update, pushes: Sequence[StagedPush]) -> None:
        """`pushes` belong to `update.pushes`, in that order."""
        assert len(pushes) == len(update.pushes)
        self.number = update.number
        self._table = table
        self._layout = layout
        self._update = update
        self._pushes = tuple(pushes)
        self._factors: tuple[float, ...] | None = None  # by optimizer, once norms are known
        self._pool: BufferPool | None = None
        self._sum: torch.Tensor | None = None  # kept sum of the gradients, laid out like the part
        self._summed: set[int] = set()  # units that are in it

    @property
    def needs_norms(self) -> bool:
        """The squares over all servers must be known before a unit can be applied: call `clip` with them."""
        return self._update.is_clipped and self._factors is None

    @property
    def held_bytes(self) -> int:
        return 0 if self._sum is None else len(self._sum)

    def keep_sum(self, pool: BufferPool) -> None:
        """Take memory for the sum, so that it is computed once. `pool` has buffers of the layout's size."""
        if self._sum is None:
            self._pool, self._sum = pool, pool.take()

    def clip(self, squares: Sequence[float]) -> None:
        """`squares`: of the gradients' norms over all servers, by optimizer."""
        pairs = zip(self._update.clip_norms, squares, strict=True)
        self._factors = tuple(clip_factor(most, square) for most, square in pairs)

    def square(self, number: int, blocks: Collection[int]) -> float:
        """Squared norm of one unit's summed gradient, counting only these blocks (by number in the table)."""
        unit = self._layout.units[number]
        gradient = self._gradient(number, None)
        if gradient is None:
            return 0.0
        item, start = gradient.element_size(), unit.start
        total, place = 0.0, unit.first
        while place < unit.last:
            last = place
            while last < unit.last and self._layout.blocks[last] in blocks:
                last += 1
            part = gradient[(self._layout.offset(place) - start) // item : (self._layout.offset(last) - start) // item]
            total += _square(part)
            place = max(last, place + 1)
        return total

    def gradient(self, number: int, scratch: torch.Tensor) -> torch.Tensor | None:
        """One unit's gradient, in its dtype, only to be read; None: this update does not change the unit."""
        found = self._gradient(number, scratch)
        unit = self._layout.units[number]
        factor = 1.0 if self._factors is None else self._factors[unit.optimizer]
        if found is None or factor == 1.0:
            return found
        return torch.mul(found, factor, out=scratch[: unit.size].view(found.dtype))

    def values(self, unit: Unit) -> dict[str, Any]:
        """The optimizer's values for the unit's group."""
        values = self._update.groups(unit.optimizer)[unit.group]
        return present_values(self._table.rules[unit.optimizer].name, values, unit.dtype, self._update.lr_factor)

    def close(self) -> None:
        """Safe to call twice."""
        if self._sum is not None and self._pool is not None:
            self._pool.put(self._sum)
        self._sum = self._pool = None

    def _gradient(self, number: int, scratch: torch.Tensor | None) -> torch.Tensor | None:
        """The sum before clipping: in the kept memory, in `scratch`, or where it was staged."""
        unit = self._layout.units[number]
        summands = [
            (gradient, self._update.scales[index])
            for index in self._update.summands(unit.optimizer)
            if (gradient := self._pushes[index].gradient(unit)) is not None
        ]
        if not summands:
            return None
        dtype = torch_type(unit.dtype)
        if self._sum is not None:
            place = self._sum[unit.start : unit.stop].view(dtype)
            if number in self._summed:
                return place
            found = _sum(summands, place)
            if found.data_ptr() == place.data_ptr():
                self._summed.add(number)
            return found
        assert scratch is not None, "a sum that is clipped must be kept"
        return _sum(summands, scratch[: unit.size].view(dtype))


def _sum(summands: Sequence[tuple[torch.Tensor, float]], place: torch.Tensor) -> torch.Tensor:
    """Sum in the given order, into `place`; a single summand with scale 1 is returned itself."""
    (first, scale), *others = summands
    if not others and scale == 1.0:
        return first
    if place.dtype in _HALVES:
        total = first.float().mul_(scale)
        for gradient, factor in others:
            total.add_(gradient, alpha=factor)
        return place.copy_(total)
    if scale == 1.0:
        (second, factor), *others = others
        torch.add(first, second, alpha=factor, out=place)
    else:
        torch.mul(first, scale, out=place)
    for gradient, factor in others:
        place.add_(gradient, alpha=factor)
    return place


def _square(gradient: torch.Tensor) -> float:
    """Squared norm, computed in float32 as in torch's own clipping, or in float64."""
    if not gradient.numel():
        return 0.0
    plain = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    dtype = torch.float64 if plain.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(plain, dtype=dtype)) ** 2
