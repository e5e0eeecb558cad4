"""Values on their way to a worker: asked for in the order of need, copied out when the script waits for them.

Bytes that are sent land in a buffer laid out like the servers' parts. Where memory is shared nothing is sent: values
are copied from the server's memory, and a seal tells whether they changed meanwhile. If they did, they are copied
again, and after `COPY_TRIES` copies asked for as bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from shoal.codecs.codec import Leg
from shoal.errors import UsageError, WireError
from shoal.parameters import texts
from shoal.parameters.blocks import large_copy
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.blocks.byte_views import bytes_of, torch_type
from shoal.parameters.client.client_ask import Asked, Asking, PullTerms
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.client_layout import ClientLayout, Stretch
from shoal.parameters.client.client_memory import bytes_at
from shoal.parameters.client.client_servers import PeerArenas, ServerLine
from shoal.transport.memory import memory_order
from shoal.transport.memory.arena import word_at
from shoal.wire.parameter_messages import Part

COPY_TRIES = 3  # copies of shared memory that changes meanwhile, before its values are asked for as bytes
CHANGING_SECONDS = 0.0005  # pause before the next copy, while a server changes the unit


@dataclass(frozen=True)
class _Source:
    """Where the values of a piece are: byte p of the server's part is byte `p + shift` of `memory`."""

    memory: torch.Tensor  # bytes
    shift: int
    seal: int = 0  # address of the counter that guards the values; 0: the memory is this worker's own


class PullMemory:
    """Memory that pulls reuse. Guarded by the client's lock, except in `tidy`."""

    def __init__(self) -> None:
        self._arenas = PeerArenas()
        self._arena_bytes: dict[bytes, torch.Tensor] = {}
        self._buffers: dict[int, torch.Tensor] = {}  # by server
        self._layout: ClientLayout | None = None

    def tidy(self, offers: set[bytes]) -> None:
        """Unmap all servers' memory but these. In the script's thread only, while it copies nothing."""
        self._arena_bytes = {offer: found for offer, found in self._arena_bytes.items() if offer in offers}
        self._arenas.keep(offers)

    def use(self, layout: ClientLayout) -> None:
        if layout is not self._layout:
            self._layout = layout
            self._buffers = {}

    def buffer(self, server: int, size: int) -> torch.Tensor:
        """Made when it is first needed: servers that share memory need none."""
        if server not in self._buffers:
            self._buffers[server] = torch.empty(size, dtype=torch.uint8)
        return self._buffers[server]

    def arena(self, offer: bytes) -> torch.Tensor | None:
        """A server's memory; None: it cannot be mapped here."""
        if offer not in self._arena_bytes:
            arena = self._arenas.get(offer)
            if arena is None:
                return None
            self._arena_bytes[offer] = bytes_at(arena.address, arena.size)
        return self._arena_bytes[offer]


class IncomingPull(Asking):
    """`wait` and `wait_all` are for the script's thread."""

    def __init__(self, core: ClientCore, memory: PullMemory, terms: PullTerms) -> None:
        super().__init__(core, terms)
        self._memory = memory
        self._sources: dict[tuple[int, int], _Source] = {}  # by server and piece
        self._updates: dict[int, int] = {}  # by server: the fewest in any of its answers

    @property
    def updates(self) -> int:
        """The number of updates that all values received so far include."""
        with self._core.thread.changed:
            return min(self._updates.values(), default=0)

    def wait(self, name: str, into: torch.Tensor) -> None:
        """Copy a tensor's values into `into` as soon as they are here."""
        tries = 0
        while not self._copy_all(name, into):
            tries += 1
            if tries % COPY_TRIES:
                time.sleep(CHANGING_SECONDS)
            else:
                self._ask_by_value(name)

    def wait_all(self, into: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in into.items():
            self.wait(name, tensor)

    def _copy_all(self, name: str, into: torch.Tensor) -> bool:
        """False: some values changed during the copy."""
        flat = self._target(name, into)
        for stretch, source in self._core.wait_for(lambda: self._found(name), self):
            if not _copy(stretch, source, flat):
                return False
        if flat.data_ptr() != into.data_ptr():
            into.data.copy_(flat.reshape(into.shape))
        return True

    def _target(self, name: str, into: torch.Tensor) -> torch.Tensor:
        layout = self._core.layout
        assert layout is not None, "define comes first"
        number = layout.names.get(name)
        spec = None if number is None else layout.table.tensors[number]
        if spec is None or tuple(into.shape) != spec.shape or into.dtype != torch_type(spec.dtype):
            wanted = texts.NOT_THERE if spec is None else texts.tensor_kind(spec.dtype, spec.shape)
            raise UsageError(texts.target_differs(name, texts.tensor_kind(into.dtype, tuple(into.shape)), wanted))
        return into.data.reshape(-1)  # a copy where it is not contiguous

    def _found(self, name: str) -> list[tuple[Stretch, _Source]] | None:
        """Where all of a tensor is; None while something is missing."""
        self._core.check(self._epoch)
        if self._layout is None or self._layout is not self._core.layout:
            return None
        stretches = self._layout.reads[self._layout.names[name]]
        found = [(stretch, self._sources.get((stretch.server, stretch.piece))) for stretch in stretches]
        complete = [(stretch, source) for stretch, source in found if source is not None]
        return complete if len(complete) == len(stretches) else None

    def _ask_by_value(self, name: str) -> None:
        """Ask for the tensor as bytes where shared memory changed during every copy."""
        with self._core.thread.changed:
            layout = self._layout
            if layout is None:
                return
            for stretch in layout.reads[layout.names[name]]:
                source = self._sources.get((stretch.server, stretch.piece))
                if source is not None and source.seal:
                    piece = layout.pieces[stretch.server][stretch.piece]
                    self._by_value.add((stretch.server, piece.unit))
                    del self._sources[stretch.server, stretch.piece]
                    self._to_ask.append(Asked(stretch.server, piece.first, piece.last, (stretch.piece,)))
            self._core.thread.do(self.pump)

    # In the client's thread

    def started_over(self, layout: ClientLayout) -> None:
        self._sources.clear()
        self._updates.clear()
        self._memory.use(layout)

    def room_for(self, asked: Asked, note: Part, size: int) -> memoryview | None:
        assert self._layout is not None
        part = self._layout.parts[asked.server]
        if note.codec:
            self._codec_of(note).check(part.blocks[asked.first : asked.last], note.lengths, size)
            return memoryview(bytearray(size))
        start, stop = part.offset(asked.first), part.offset(asked.last)
        if stop - start != size:
            raise WireError(f"it sends {size} bytes where {stop - start} were asked for")
        return bytes_of(self._memory.buffer(asked.server, part.size)[start:stop])

    def taken(self, line: ServerLine, asked: Asked, note: Part, payload: memoryview | None) -> bool:
        assert self._layout is not None
        part = self._layout.parts[asked.server]
        if note.place < 0:
            source = _Source(self._memory.buffer(asked.server, part.size), 0)
            if note.codec and payload is not None:  # plain bytes are in the buffer already
                start, stop = part.offset(asked.first), part.offset(asked.last)
                blocks, encoded = part.blocks[asked.first : asked.last], (note.lengths, payload)
                self._codec_of(note).decode_all(blocks, Leg.VALUES, encoded, source.memory[start:stop])
        else:
            line.arena = note.arena
            memory = self._memory.arena(note.arena)
            if memory is None:
                self._by_value.add((asked.server, part.unit_of(asked.first)))
                return False
            start, stop = part.offset(note.first), part.offset(note.last)
            if note.place + stop - start > len(memory) or not 0 <= note.seal <= len(memory) - 4:
                raise WireError(f"server {line.server.number} names a place outside of its memory")
            source = _Source(memory, note.place - start, memory.data_ptr() + note.seal)
        for piece in asked.pieces:
            self._sources[asked.server, piece] = source
        self._updates[asked.server] = min(note.updates, self._updates.get(asked.server, note.updates))
        return True

    def _codec_of(self, note: Part) -> BlockCodec:
        codec = self._core.codec
        if codec is None or note.codec != codec.text:
            raise WireError(f"it sends values as the codec {note.codec} encodes them, which nobody asked for")
        return codec


def _copy(stretch: Stretch, source: _Source, flat: torch.Tensor) -> bool:
    """Copy; whether the values stayed unchanged meanwhile."""
    before = word_at(source.seal).value if source.seal else 0
    if before % 2:
        return False
    if memory_order.is_weak:
        memory_order.fence()
    start = stretch.place + source.shift
    large_copy.copy(flat[stretch.start : stretch.stop], source.memory[start : start + stretch.size].view(flat.dtype))
    if memory_order.is_weak:
        memory_order.fence()
    return not source.seal or word_at(source.seal).value == before
