"""Pushes that workers have staged on one server and that are not decided yet, or not applied yet.

Gradients from the network are received into one buffer per push, which is as long as the server's part and is used
again afterwards; gradients of workers on the same machine are read from the workers' arenas. An encoded message is
decoded into the buffer as soon as it is whole. Blocks with state (`is_state`) get memory of their own. Every message is
checked against the layout, and a bad one is refused with a sentence. A `StagedPushes` belongs to one layout: a new
version of the map begins with a new one.

Not here: when a push is applied or dropped (`ledger`), how gradients are summed (`shard_update`).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import torch

from shoal.codecs.codec import Leg
from shoal.errors import ServerRefused, WireError
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.blocks.block_state import ALIGNMENT, BlockState, payload_bytes, unpack
from shoal.parameters.blocks.byte_views import bytes_of, torch_type
from shoal.parameters.blocks.memory_budget import SpaceBudget
from shoal.parameters.blocks.part_layout import PartLayout, Unit
from shoal.parameters.blocks.table_blocks import ITEM_BYTES
from shoal.wire.parameter_messages import Stage, StageEnd
from shoal.wire.tables import PushId, TableSpec

SPARE_BUFFERS = 2  # kept for the next pushes: one is filled while the other is applied
MOST_PUSHES = 16  # staged by one worker at once; an honest worker has at most three


class BufferPool:
    """Buffers of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._spare: list[torch.Tensor] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of spare buffers."""
        return len(self._spare) * self._size

    def take(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else torch.empty(self._size, dtype=torch.uint8)

    def put(self, buffer: torch.Tensor) -> None:
        if len(self._spare) < SPARE_BUFFERS:
            self._spare.append(buffer)


@dataclass(frozen=True)
class _Encoded:
    """Encoded blocks that are being received."""

    codec: BlockCodec
    numbers: tuple[int, ...]  # of the blocks
    lengths: tuple[int, ...]
    data: memoryview

    def decode(self, memory: torch.Tensor) -> None:
        self.codec.decode_all(self.numbers, Leg.CONTRIBUTION, (self.lengths, self.data), memory)


@dataclass(order=True)
class _Piece:
    """Blocks `first` to `last` of the key list."""

    first: int
    last: int
    memory: torch.Tensor = field(compare=False)  # their bytes
    described: bytes = field(compare=False, default=b"")  # with state: what the bytes hold
    encoded: _Encoded | None = field(compare=False, default=None)  # decoded into `memory` on arrival, then None
    has_arrived: bool = field(compare=False, default=False)


class StagedPush:
    """What one worker has staged under one number."""

    def __init__(self, table: TableSpec, layout: PartLayout) -> None:
        self._table = table
        self._layout = layout
        self._pieces: list[_Piece] = []  # by place in the key list
        self.buffer: torch.Tensor | None = None  # gradients are received into it
        self.uses_arena = False  # some of it is in the worker's memory: tell the worker when that is free again
        self.is_complete = False

    @property
    def arrived_bytes(self) -> int:
        return sum(len(piece.memory) for piece in self._pieces if piece.has_arrived)

    @property
    def held_bytes(self) -> int:
        """Bytes of this server's memory."""
        states = sum(len(piece.memory) for piece in self._pieces if piece.described)
        states += sum(len(piece.encoded.data) for piece in self._pieces if piece.encoded is not None)
        return states + (0 if self.buffer is None else len(self.buffer))

    @property
    def is_arriving(self) -> bool:
        """Bytes are still being received into its memory."""
        return not all(piece.has_arrived for piece in self._pieces)

    def gradient(self, unit: Unit) -> torch.Tensor | None:
        """The gradient of a whole unit, in its dtype, only to be read; None: the worker has staged none."""
        found = [piece for piece in self._between(unit.first, unit.last) if not piece.described]
        if not found:
            return None
        if len(found) == 1:
            memory = self._bytes(found[0], unit.first, unit.last)
        elif self.buffer is not None and not self.uses_arena:
            memory = self.buffer[unit.start : unit.stop]
        else:
            memory = torch.cat([self._bytes(piece, unit.first, unit.last) for piece in found])
        return memory.view(torch_type(unit.dtype))

    def states(self, unit: Unit) -> dict[int, BlockState]:
        """Blocks with state, by their place in the key list, as far as they were staged."""
        found: dict[int, BlockState] = {}
        for piece in self._between(unit.first, unit.last):
            if piece.described:
                numbers = self._layout.blocks[piece.first : piece.last]
                states = unpack(self._table, numbers, piece.described, piece.memory)
                places = range(piece.first, piece.last)
                found |= {
                    place: state for place, state in zip(places, states, strict=True) if unit.first <= place < unit.last
                }
        return found

    def add(self, piece: _Piece) -> None:
        if self.is_complete or self._between(piece.first, piece.last):
            raise _bad(f"blocks {piece.first} to {piece.last} of a push were staged twice, or after its end")
        bisect.insort(self._pieces, piece)

    def arrived(self, first: int) -> None:
        """The bytes of the piece that starts at `first` have arrived. `WireError`: they cannot be decoded."""
        at = bisect.bisect_left(self._pieces, first, key=lambda piece: piece.first)
        if at < len(self._pieces) and self._pieces[at].first == first:
            piece = self._pieces[at]
            if piece.encoded is not None:
                piece.encoded.decode(piece.memory)
                piece.encoded = None
            piece.has_arrived = True

    def finish(self, size: int) -> None:
        """Check that all `size` bytes are here and that every unit's gradient is whole or missing."""
        if self.is_arriving or size != self.arrived_bytes:
            raise _bad(f"a push ends after {size} bytes, and {self.arrived_bytes} came")
        for unit in self._layout.units:
            found = [piece for piece in self._between(unit.first, unit.last) if not piece.described]
            covered = sum(min(piece.last, unit.last) - max(piece.first, unit.first) for piece in found)
            if covered not in (0, unit.last - unit.first):
                raise _bad(
                    f"a push has the gradients of {covered} of the {unit.last - unit.first} blocks from {unit.first} on"
                )
        self.is_complete = True

    def _between(self, first: int, last: int) -> list[_Piece]:
        start = bisect.bisect_right(self._pieces, first, key=lambda piece: piece.last)
        found = []
        for piece in self._pieces[start:]:
            if piece.first >= last:
                break
            found.append(piece)
        return found

    def _bytes(self, piece: _Piece, first: int, last: int) -> torch.Tensor:
        start = self._layout.offset(piece.first)
        part = slice(
            self._layout.offset(max(first, piece.first)) - start, self._layout.offset(min(last, piece.last)) - start
        )
        return piece.memory[part]


class StagedPushes:
    """All pushes that are staged by one layout."""

    def __init__(self, table: TableSpec, layout: PartLayout, budget: SpaceBudget) -> None:
        self._table = table
        self._layout = layout
        self._budget = budget
        self.pool = BufferPool(layout.size)
        self.most_buffers = 0  # most bytes of buffers in use at once so far: the job will need as many again
        self._pushes: dict[PushId, StagedPush] = {}

    @property
    def held_bytes(self) -> int:
        return self.pool.held_bytes + sum(push.held_bytes for push in self._pushes.values())

    def room(self, note: Stage, size: int, codec: BlockCodec | None = None) -> memoryview:
        """Memory for the payload of a Stage message. `codec`: what encoded it. Call `arrived` when it is filled."""
        self._check_range(note)
        push = self._of(note.push)
        if note.is_state:
            self._check_size(size, payload_bytes(self._table, self._numbers(note), note.state))
            self._budget.check_staged(size, self.held_bytes, "blocks with state")
            memory = torch.empty(size, dtype=torch.uint8)
            push.add(_Piece(note.first, note.last, memory, note.state))
            return bytes_of(memory)
        start, stop = self._layout.offset(note.first), self._layout.offset(note.last)
        encoded = None
        if codec is None:
            self._check_size(size, stop - start)
        else:
            encoded = self._encoded(note, size, codec)
        if push.buffer is None:
            if not self.pool.held_bytes:
                self._budget.check_staged(self._layout.size, self.held_bytes, "a push")
            push.buffer = self.pool.take()
            buffers = sum(each.buffer is not None for each in self._pushes.values())
            self.most_buffers = max(self.most_buffers, buffers * self._layout.size)
        memory = push.buffer[start:stop]
        push.add(_Piece(note.first, note.last, memory, encoded=encoded))
        return bytes_of(memory) if encoded is None else encoded.data

    def _encoded(self, note: Stage, size: int, codec: BlockCodec) -> _Encoded:
        numbers = self._numbers(note)
        try:
            codec.check(numbers, note.lengths, size)
        except WireError as error:
            raise _bad(f"push {note.push.number} of worker {note.push.worker}: {error}") from None
        self._budget.check_staged(size, self.held_bytes, "an encoded push")
        return _Encoded(codec, numbers, note.lengths, memoryview(bytearray(size)))

    def arrived(self, note: Stage) -> None:
        """The payload of a Stage message has arrived. Ignored if its push was dropped meanwhile."""
        try:
            if note.push in self._pushes:
                self._pushes[note.push].arrived(note.first)
        except WireError as error:
            raise _bad(f"push {note.push.number} of worker {note.push.worker}: {error}") from None

    def place(self, note: Stage, arena: torch.Tensor) -> None:
        """Take bytes in the worker's arena, which is mapped here as `arena`, a tensor of bytes."""
        self._check_range(note)
        if note.is_state:
            size, grain = payload_bytes(self._table, self._numbers(note), note.state), ALIGNMENT
        else:
            size = self._layout.offset(note.last) - self._layout.offset(note.first)
            grain = ITEM_BYTES[self._layout.units[self._layout.unit_of(note.first)].dtype]
        if not 0 <= note.place <= len(arena) - size or note.place % grain:
            raise _bad(
                f"{size} bytes at {note.place} of an arena of {len(arena)}: they must lie in it, at a multiple of "
                f"{grain}"
            )
        push = self._of(note.push)
        memory = arena[note.place : note.place + size]
        push.add(_Piece(note.first, note.last, memory, note.state if note.is_state else b"", has_arrived=True))
        push.uses_arena = True

    def end(self, note: StageEnd) -> StagedPush:
        """All of the push has been staged."""
        push = self._of(note.push)
        push.finish(note.size)
        return push

    def find(self, push: PushId) -> StagedPush | None:
        return self._pushes.get(push)

    def drop(self, push: PushId) -> StagedPush | None:
        """Forget a push that has been applied or never will be. Returns it, so that its worker can be told."""
        found = self._pushes.pop(push, None)
        # A buffer that bytes are still being received into must not be used for the next push.
        if found is not None and found.buffer is not None and not found.is_arriving:
            self.pool.put(found.buffer)
        return found

    def all(self) -> tuple[PushId, ...]:
        return tuple(self._pushes)

    def of_worker(self, worker: int) -> tuple[PushId, ...]:
        return tuple(push for push in self._pushes if push.worker == worker)

    def _of(self, push: PushId) -> StagedPush:
        if push not in self._pushes:
            if len(self.of_worker(push.worker)) >= MOST_PUSHES:
                raise _bad(
                    f"worker {push.worker} has {MOST_PUSHES} pushes staged: propose or discard some of them first"
                )
            self._pushes[push] = StagedPush(self._table, self._layout)
        return self._pushes[push]

    def _numbers(self, note: Stage) -> tuple[int, ...]:
        return self._layout.blocks[note.first : note.last]

    def _check_range(self, note: Stage) -> None:
        if not 0 <= note.first < note.last <= len(self._layout.blocks):
            raise _bad(f"blocks {note.first} to {note.last} of a list of {len(self._layout.blocks)}")
        if note.codec and (note.is_state or note.place >= 0):
            raise _bad(f"the codec {note.codec} encodes gradients that are sent, and nothing else that is staged")

    def _check_size(self, size: int, wanted: int) -> None:
        if size != wanted:
            raise _bad(f"{size} bytes came for blocks that have {wanted}")


def _bad(reason: str) -> ServerRefused:
    return ServerRefused(reason, kind="bad-request")
