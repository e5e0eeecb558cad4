"""The memory of a server's part: plain, or an arena that workers of the same machine read values from.

In an arena every unit has a *seal*, a 32-bit counter that is odd while the unit's bytes change and a new even number
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

_SEAL_BYTES = 64  # one cache line per seal, so that readers of one seal do not slow down those of the next


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
        """How other processes find the arena; None: the memory is private."""
        return None if self._arena is None else self._arena.offer

    def place(self, offset: int) -> int:
        """Offset in the arena of this byte of the part; -1: there is no arena."""
        return -1 if self._arena is None else self._start + offset

    def seal_place(self, unit: int) -> int:
        """Offset in the arena of a unit's seal; -1: there is no arena."""
        return -1 if self._arena is None else RESERVED + unit * _SEAL_BYTES

    def break_seal(self, unit: int) -> None:
        """The unit's bytes change from here on."""
        if self._seals:
            self._seals[unit].value += 1
            if memory_order.is_weak:
                memory_order.fence()

    def seal(self, unit: int) -> None:
        """The unit's bytes are complete again."""
        if self._seals:
            if memory_order.is_weak:
                memory_order.fence()
            self._seals[unit].value += 1

    def close(self) -> None:
        """Let no other process open the memory any more. Existing views stay valid. Safe to call twice."""
        self._seals = []
        self.tensor = torch.empty(0, dtype=torch.uint8)
        if self._arena is not None:
            arena, self._arena = self._arena, None
            arena.close()
