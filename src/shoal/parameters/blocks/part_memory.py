"""The memory of a server's part: plain, or an arena that workers of the same machine read values from.

In an arena every unit has a *seal*, a 32-bit counter that is odd while the unit's bytes change and another one
afterwards. A reader copies the bytes between two looks at the seal, and takes them if both show the same even number.
"""

from __future__ import annotations

import ctypes
import mmap

import torch

from shoal.parameters.blocks.byte_views import tensor_over
from shoal.parameters.blocks.part_layout import PartLayout
from shoal.transport.memory import memory_order
from shoal.transport.memory.arena import RESERVED, Arena, Offer, word_at

_SEAL_BYTES = 64  # a line of the processor's cache each, so that readers of one do not disturb the next


class PartMemory:
    """Bytes of one layout."""

    def __init__(self, layout: PartLayout, *, is_shared: bool) -> None:
        self._arena: Arena | None = None
        self._seals: list[ctypes.c_uint32] = []
        self._start = 0  # of the part in the arena
        if not is_shared:
            self.tensor = torch.empty(layout.size, dtype=torch.uint8)
            return
        seals = RESERVED + len(layout.units) * _SEAL_BYTES
        self._start = -(-seals // mmap.PAGESIZE) * mmap.PAGESIZE
        self._arena = Arena.create(self._start + max(layout.size, 1))
        self._arena.use_large_pages(0, self._arena.size)
        self.tensor = tensor_over(self._arena.memory[self._start : self._start + layout.size])
        self._seals = [word_at(self._arena.address + self.seal_place(number)) for number in range(len(layout.units))]

    @property
    def offer(self) -> Offer | None:
        """What others find the arena by; None: it is nobody else's."""
        return None if self._arena is None else self._arena.offer

    def place(self, offset: int) -> int:
        """Where in the arena this byte of the part is; -1: nowhere."""
        return -1 if self._arena is None else self._start + offset

    def seal_place(self, unit: int) -> int:
        """Where in the arena a unit's seal is; -1: nowhere."""
        return -1 if self._arena is None else RESERVED + unit * _SEAL_BYTES

    def break_seal(self, unit: int) -> None:
        """The unit's bytes change from here on."""
        if self._seals:
            self._seals[unit].value += 1
            if memory_order.is_weak:
                memory_order.fence()

    def seal(self, unit: int) -> None:
        """They are whole again."""
        if self._seals:
            if memory_order.is_weak:
                memory_order.fence()
            self._seals[unit].value += 1

    def close(self) -> None:
        """Nobody new can open it. Memory that is still looked at stays until then. Safe to call twice."""
        self._seals = []
        self.tensor = torch.empty(0, dtype=torch.uint8)
        if self._arena is not None:
            arena, self._arena = self._arena, None
            arena.close()
