"""A worker's staging memory: slots in an arena. Servers on this machine read gradients there; others are sent them.

A slot is taken for a push and is free again when no server may read it any more. Two slots are in regular use; the
third is touched only when a push has to be laid out anew while both are taken. Guarded by the client's lock.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import msgspec
import torch

from shoal.parameters.blocks.byte_views import torch_type
from shoal.parameters.client.client_layout import PAGE, ClientLayout, slot_capacity
from shoal.transport.memory.arena import RESERVED, Arena
from shoal.wire.tables import PushId, TableSpec

WORKING_SLOTS = 2
SLOTS = WORKING_SLOTS + 1


def bytes_at(address: int, size: int) -> torch.Tensor:
    """Memory as a tensor. The mapping must outlive the tensor; read-only pages must not be written through it."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


@dataclass
class Slot:
    """Room for one push."""

    start: int  # place in the arena
    push: PushId | None = None  # the push in this slot; None: free
    readers: set[int] = field(default_factory=set)  # servers that were told places in the slot and may still read them
    is_over: bool = False  # this worker is done with the slot: it is free once there are no readers
    layout: ClientLayout | None = None  # the layout of `views`
    views: list[list[torch.Tensor]] = field(default_factory=list)  # by tensor: the memory of its stretches

    def free_if_over(self) -> None:
        if self.is_over and not self.readers:
            self.push = None
            self.is_over = False


class StagingMemory:
    """For one table."""

    def __init__(self, table: TableSpec, replicas: int) -> None:
        self.capacity = slot_capacity(table, replicas)
        self._slots = [Slot(start=-(-RESERVED // PAGE) * PAGE + number * self.capacity) for number in range(SLOTS)]
        self.arena = Arena.create(-(-RESERVED // PAGE) * PAGE + SLOTS * self.capacity)
        self.arena.use_large_pages(0, self._slots[WORKING_SLOTS].start)
        self.offer = msgspec.msgpack.encode(self.arena.offer)
        self._bytes = bytes_at(self.arena.address, self.arena.size)

    def take(self, push: PushId, layout: ClientLayout, *, is_urgent: bool = False) -> Slot | None:
        """A free slot, laid out; None while there is none. Only urgent pushes may take the third slot."""
        for slot in self._slots if is_urgent else self._slots[:WORKING_SLOTS]:
            if slot.push is None:
                slot.push = push
                self._lay_out(slot, layout)
                return slot
        return None

    def released(self, push: PushId, server: int) -> None:
        """The server does not need this push's bytes any more."""
        for slot in self._slots:
            if slot.push == push:
                slot.readers.discard(server)
                slot.free_if_over()

    def owed_by(self, server: int) -> list[Slot]:
        """Slots that a server may still read, though this worker is done with them."""
        return [slot for slot in self._slots if slot.is_over and server in slot.readers]

    def begun(self, server: int, version: int) -> None:
        """The server uses this version of the map: it has applied or dropped what was staged under earlier versions."""
        for slot in self._slots:
            if slot.layout is not None and slot.layout.version < version:
                slot.readers.discard(server)
                slot.free_if_over()

    def keep_readers(self, living: set[int]) -> None:
        """Forget readers that are gone."""
        for slot in self._slots:
            slot.readers &= living
            slot.free_if_over()

    def view(self, slot: Slot, server: int, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop` of a server's area, to be sent."""
        place = self.place(slot, server, start)
        return self.arena.memory[place : place + stop - start]

    def place(self, slot: Slot, server: int, offset: int) -> int:
        """Where byte `offset` of a server's area is in the arena."""
        assert slot.layout is not None
        return slot.start + slot.layout.areas[server] + offset

    def close(self) -> None:
        for slot in self._slots:
            slot.views.clear()
        self.arena.close()

    def _lay_out(self, slot: Slot, layout: ClientLayout) -> None:
        if slot.layout is layout:
            return
        assert layout.slot_bytes <= self.capacity, (layout.slot_bytes, self.capacity)
        slot.layout = layout
        slot.views = [
            [
                self._bytes[place : place + stretch.size].view(torch_type(tensor.dtype))
                for stretch in stretches
                for place in (self.place(slot, stretch.server, stretch.place),)
            ]
            for tensor, stretches in zip(layout.table.tensors, layout.writes, strict=True)
        ]
